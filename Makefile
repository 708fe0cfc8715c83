# `make demo` shows what Forebay does, `make test` checks everything, `make quick` what was changed. The first two install what is missing (see scripts/setup).
.PHONY: demo test quick setup build install uninstall deb rpm lint doc unit instructions e2e lab bench sim-long

demo: setup
	cargo build --release --locked -p forebay-cli
	target/release/forebay demo

# The stages run one after the other, all of them; the seconds of each are printed, and which failed.
test:
	@scripts/setup lab
	@scripts/stages lint doc unit build instructions e2e lab
	@echo "make test: everything passed"

# What is worth a look while working, in less than five minutes.
quick:
	@scripts/quick

setup:
	@scripts/setup

build:
	cargo build --release --locked -p forebay-cli -p forebay-lab-host -p forebay-flashcache-model

# Where a system looks for it; as root, or with DESTDIR. What is built is installed: `make build` first.
install:
	@scripts/install

uninstall:
	@scripts/install --remove

# Packages of the program that is built, in target/packages. Debian's has the debug symbols beside it.
deb: build
	@scripts/package deb dbgsym

rpm: build
	@scripts/package rpm

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	target/venv/bin/ruff check --no-cache bench
	target/venv/bin/ruff format --no-cache --check bench
	target/venv/bin/ruff check --no-cache --config bench/ruff.toml tests tests/power-cuts/run scripts/check-docs scripts/licenses scripts/mutants scripts/structure scripts/wrap-comments
	target/venv/bin/ruff format --no-cache --config bench/ruff.toml --check tests tests/power-cuts/run scripts/check-docs scripts/licenses scripts/mutants scripts/structure scripts/wrap-comments
	scripts/check-docs
	scripts/licenses --check
	scripts/wrap-comments --check
	scripts/structure --check
	lab/check style

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

# All crates, even if one fails: what failed is listed at the end. Then the arithmetic of the benchmarks and the rules of power cuts.
unit:
	cargo test --workspace --locked --no-fail-fast
	target/venv/bin/python -m pytest -q -p no:cacheprovider bench/tests tests/power-cuts

# What requests cost the engine, in instructions: fails if that grew. Two minutes, on a busy machine as well.
instructions: setup
	bench/instructions

e2e: build
	scripts/run-tests

# The lab's tests, then all its experiments at their smallest: that they work and find wrong data, not how fast anything is.
# The model of flash is taken as the tests have built it: another command would build the libraries again, with other features.
lab: build
	lab/check tests
	cargo test --quiet --locked --workspace --no-run
	FLASH_BENCH=target/debug/examples/flash-bench lab/lab run all --smoke --fresh

# The figures of docs/results/performance.md, on this machine. Nearly an hour; `make bench COMPARE=--quick` takes ten minutes.
COMPARE ?=
bench: setup build
	bench/compare $(COMPARE)
	bench/restart

# Hours rather than seconds: a million crash points, and fifty kills under load.
sim-long: setup build
	target/release/forebay sim --crashes 1000000
	KILLS=50 TIME_LIMIT=3600 scripts/run-tests kill-loop
