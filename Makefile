# Towline's commands. `make help` lists them. Every target does its own set-up and is incremental afterwards.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The interpreter that will load the module; pyo3's build script inspects it.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml \
	$(shell find crates \( -name '*.rs' -o -name '*.txt' -o -name Cargo.toml -o -path '*/testdata/*' \) -type f)

say = @printf '\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help run hello pythons free-threaded portable test test-change check check-sources check-package check-rust format cargo-test cargo-test-build pytest suites build bench bench-client peers peer-options loom fuzz-build fuzz audit docs wheels autobahn conformance connect clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up -------------------------------------------------------------------------------------

$(BIN)/python:
	$(call say,creating $(VENV) with $(PYTHON))
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# pip reads [dependency-groups] from 25.1 on.
$(VENV)/.stamp-tools: pyproject.toml | $(BIN)/python
	$(call say,installing the build tools)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group build
	@touch $@

$(VENV)/.stamp-test: pyproject.toml $(VENV)/.stamp-tools
	$(call say,installing the packages of checks and tests)
	$(BIN)/python -m pip install --quiet --group ci
	@touch $@

$(VENV)/.stamp-browser: scripts/browser.sh | $(BIN)/python
	@scripts/browser.sh
	@touch $@

$(VENV)/.stamp-peers: pyproject.toml scripts/install_peers.py $(VENV)/.stamp-tools
	$(call say,installing the servers and clients to compare with)
	@$(BIN)/python scripts/install_peers.py
	@touch $@

# --- the extension ------------------------------------------------------------------------------
# Three profiles, one place: `quick` (incremental) for work and tests, `fast-build` for `make run`, `release` for wheels, `make build` and
# `make bench`. A release build serves all of these; a quick build never passes for another.

$(VENV)/.stamp-native: $(NATIVE_SOURCES) | $(VENV)/.stamp-tools
	$(call say,building the extension (profile quick))
	@$(BIN)/python scripts/build.py quick
	@rm -f $(VENV)/.stamp-run $(VENV)/.stamp-release
	@touch $@

$(VENV)/.stamp-run: $(NATIVE_SOURCES) | $(VENV)/.stamp-tools
	$(call say,building the extension (profile fast-build))
	@$(BIN)/python scripts/build.py fast-build
	@rm -f $(VENV)/.stamp-release
	@touch $(VENV)/.stamp-native $@

$(VENV)/.stamp-release: $(NATIVE_SOURCES) | $(VENV)/.stamp-tools
	$(call say,building the extension (profile release; the first time takes minutes))
	@$(BIN)/python scripts/build.py release
	@touch $(VENV)/.stamp-native $(VENV)/.stamp-run $@

# --- commands -----------------------------------------------------------------------------------

run: ## build, an application that responds, the peers, then `towline bench quick`: verdicts and a report
	@scripts/run.sh "$(MAKE)" $(BENCH_ARGS)

hello: $(VENV)/.stamp-native ## build, serve examples/hello, send it real requests, show the responses
	$(BIN)/python scripts/run_hello.py

pythons: ## tests on CPython 3.14 and 3.15 in a Debian chroot (root; PYTHONS="3.14 3.15")
	scripts/pythons.sh $(PYTHONS)

free-threaded: ## tests on a free-threaded CPython without the GIL, which is compiled from Debian's sources (PYTEST_ARGS="files")
	scripts/free_threaded.sh $(PYTEST_ARGS)

portable: $(VENV)/.stamp-test ## tests of what runs on macOS in place of the calls of Linux, on Linux (PYTEST_ARGS=...)
	scripts/portable.sh $(PYTEST_ARGS)

# Two goals at the same time, where one alone leaves a processor idle: pip waits for the network, mypy has one thread, and
# a build ends with crates that wait for each other. The output of the first is shown when both have ended. A
# background process ignores Ctrl-C, so that it is ended here.
define both
	@log=$$(mktemp); first=; trap 'rm -f "$$log"; [ -z "$$first" ] || kill "$$first"' EXIT; \
	$(MAKE) --no-print-directory $(1) >"$$log" 2>&1 & first=$$!; \
	status=0; $(MAKE) --no-print-directory $(2) || status=$$?; \
	wait $$first || status=$$?; first=; \
	cat "$$log"; exit $$status
endef

test: $(VENV)/.stamp-tools ## everything CI runs: check, Rust tests, Python tests, fuzz targets
	$(call both,$(VENV)/.stamp-test,cargo-test-build)
	$(call both,check-sources,$(VENV)/.stamp-native)
	$(call both,check-package,check-rust)
	$(call both,fuzz-build,cargo-test)
	@$(MAKE) --no-print-directory pytest

# What differs from SINCE, uncommitted files included; scripts/changed_tests.py has the areas.
SINCE ?= main

test-change: $(VENV)/.stamp-tools ## check, and the Rust and Python tests of what has changed since SINCE (main)
	$(call both,$(VENV)/.stamp-test,$(VENV)/.stamp-native)
	$(call both,check-sources,check-package check-rust)
	@crates=$$($(BIN)/python scripts/changed_tests.py rust --since $(SINCE)) || exit; \
		[ -z "$$crates" ] || $(MAKE) --no-print-directory cargo-test CARGO_TEST_CRATES="$$crates"
	@tests=$$($(BIN)/python scripts/changed_tests.py python --since $(SINCE)) || exit; \
		$(MAKE) --no-print-directory pytest PYTEST_ARGS="$$tests $(PYTEST_ARGS)"

# examples/api, hello and llm are as short as they can be, without types. A folder whose files import each other is in MYPYPATH.
TYPED_EXAMPLES := $(wildcard $(addprefix examples/,$(addsuffix /*.py,chat deployment fastapi_service files gateway httparena https_records webhooks)))

check: check-sources check-package check-rust ## format, lints, layering, types, stubs

# Those that need no build.
check-sources: $(VENV)/.stamp-test
	$(call say,house rules)
	$(BIN)/python scripts/check_layering.py
	$(BIN)/python scripts/check_text.py
	$(BIN)/python scripts/check_workflows.py
	$(BIN)/shellcheck scripts/*.sh .ci/run examples/*/*.sh
	$(call say,ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(call say,mypy)
	$(BIN)/mypy
	MYPYPATH=examples/gateway:examples/fastapi_service:examples/httparena $(BIN)/mypy --explicit-package-bases $(TYPED_EXAMPLES)

# Those that import the package.
check-package: $(VENV)/.stamp-test $(VENV)/.stamp-native
	$(call say,generated pages)
	$(BIN)/python scripts/options_doc.py --check
	$(BIN)/python scripts/client_names.py --check
	$(BIN)/python scripts/scenarios_doc.py --check
	$(BIN)/python scripts/published_comparisons_doc.py --check
	$(BIN)/python scripts/readme_chart.py --check
	$(call say,stubtest)
	$(BIN)/python -m mypy.stubtest towline._native

check-rust: | $(VENV)/.stamp-tools
	$(call say,rustfmt and clippy)
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets --profile quick -- -D warnings

format: $(VENV)/.stamp-test $(VENV)/.stamp-native ## rewrite the sources as `make check` requires
	cargo fmt --all
	$(BIN)/python scripts/options_doc.py
	$(BIN)/python scripts/client_names.py
	$(BIN)/python scripts/scenarios_doc.py
	$(BIN)/python scripts/published_comparisons_doc.py
	$(BIN)/python scripts/readme_chart.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In CI a property test has the same inputs each time, as Hypothesis's do there, so that a failure is the change's own.
# Elsewhere `make cargo-test` tries new inputs each time.
ifdef CI
export PROPTEST_RNG_SEED := 9113
# Incremental data takes a seventh of the time of a first build, and CI has no second.
export CARGO_INCREMENTAL := 0
endif

# The profile of the extension, whose dependencies are compiled once for both. All crates, although the extension's has no
# tests: a dependency has the features that any of them needs.
CARGO_TEST_CRATES ?= --workspace
# Tests over sockets mostly wait: with one thread for each processor, two cores were idle for two thirds of three minutes.
ifndef RUST_TEST_THREADS
export RUST_TEST_THREADS := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
endif
CARGO_TEST = --quiet --locked $(CARGO_TEST_CRATES) --profile quick --config scripts/rust_tests.toml

cargo-test: | $(VENV)/.stamp-tools ## Rust tests only
	$(call say,Rust tests)
	$(BIN)/python scripts/run_rust_tests.py $(CARGO_TEST)

cargo-test-build: | $(VENV)/.stamp-tools
	$(call say,building the Rust tests)
	cargo test $(CARGO_TEST) --no-run

# A test mostly waits, for servers to start and for timeouts: three workers left two cores idle for two fifths of the time. The tests
# of one file stay together and in order, because they share servers; tests/conftest.py decides which files begin first.
PYTEST_WORKERS ?= 4

pytest: $(VENV)/.stamp-test $(VENV)/.stamp-native $(VENV)/.stamp-browser ## Python tests only (PYTEST_ARGS=...)
	$(call say,Python tests)
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

$(VENV)/.stamp-conformance: pyproject.toml $(VENV)/.stamp-tools
	$(call say,installing the packages of other projects' conformance suites)
	$(BIN)/python -m pip install --quiet --group conformance
	@touch $@

conformance: $(VENV)/.stamp-conformance $(VENV)/.stamp-native ## the wire-text cases, whole and cut at every byte; h2spec (needs Go)
	cargo test --locked --package towline-proto --test all -- conformance:: corpus::
	$(BIN)/python tests/suites/h2spec.py

autobahn: $(VENV)/.stamp-conformance $(VENV)/.stamp-native ## Autobahn's WebSocket cases against our server and client
	$(BIN)/python tests/suites/websocket/ours.py

connect: $(VENV)/.stamp-native ## Connect's conformance runner against our server, over HTTP/1.1 seven times, HTTP/2 and HTTP/3 (needs Go)
	$(BIN)/python tests/suites/connect/run.py

$(VENV)/.stamp-suites: pyproject.toml $(VENV)/.stamp-tools
	$(call say,installing the packages of other projects' suites)
	$(BIN)/python -m pip install --quiet --group suites
	@touch $@

suites: $(VENV)/.stamp-suites $(VENV)/.stamp-native ## the tests of uvicorn, starlette, httpx, requests, openai, anthropic, huggingface_hub, requests-oauthlib with Towline
	$(BIN)/python tests/suites/run.py

loom: ## every order of threads in the lock-free parts, by loom (tests/loom)
	$(call say,model checking)
	cargo run --quiet --locked --manifest-path tests/loom/Cargo.toml --target-dir target/loom

fuzz-build: ## build the fuzz targets
	$(call say,fuzz targets)
	scripts/fuzz_build.sh

FUZZ_SECONDS ?= 60
fuzz: ## fuzz each target for FUZZ_SECONDS (needs cargo-fuzz: scripts/fuzz_install.sh)
	scripts/fuzz_all.sh $(FUZZ_SECONDS)

$(VENV)/.stamp-docs: pyproject.toml $(VENV)/.stamp-tools
	$(call say,installing the packages of the documentation site)
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

docs: $(VENV)/.stamp-docs $(VENV)/.stamp-native ## the documentation site in build/docs/site; fails for warnings and dead links
	$(BIN)/python scripts/docs_site.py

audit: ## licences, sources and known advisories of the crates (installs cargo-deny)
	scripts/audit.sh

wheels: ## wheels and sdist into dist/ (WHEEL_TARGETS="..." or all; scripts/wheels.sh)
	scripts/wheels.sh $(WHEEL_TARGETS)

build: $(VENV)/.stamp-release ## release build into .venv: .venv/bin/towline is the program

peers: $(VENV)/.stamp-peers ## install the Python servers and clients to compare with

bench: $(VENV)/.stamp-release $(VENV)/.stamp-peers ## measure servers against the peers (BENCH_ARGS=...)
	$(BIN)/towline bench servers $(BENCH_ARGS)

peer-options: $(VENV)/.stamp-native ## what the newest releases of other servers and clients have changed in their options
	$(BIN)/python scripts/peer_options.py --install

bench-client: $(VENV)/.stamp-release $(VENV)/.stamp-peers ## measure our clients against the peers (BENCH_ARGS=...)
	$(BIN)/towline bench clients $(BENCH_ARGS)

clean: ## remove everything that was built or installed here
	cargo clean --quiet
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis python/towline/_native*.so
