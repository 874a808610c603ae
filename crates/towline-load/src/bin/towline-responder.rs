//! `towline-responder`: the native upstream of benches as a plain program. See `--help`.

use std::process::exit;

fn main() {
    exit(towline_load::responder_main(
        std::env::args_os().skip(1).collect::<Vec<_>>(),
    ));
}
