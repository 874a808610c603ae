//! `towline-load URL`: the generator as a plain program. See `--help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    towline_load::cli::main(std::env::args_os().skip(1))
}
