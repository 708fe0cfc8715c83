# `make demo` shows what Forebay does, `make test` checks everything, `make quick` what was changed, `make test-all` takes hours. The first two
# install what is missing (see scripts/setup).
.PHONY: demo test test-all quick setup build build-tests install uninstall deb rpm lint doc unit unit-crates unit-engine unit-python instructions mutants e2e e2e-all lab bench sim-long

demo: setup
	cargo build --release --locked -p forebay-cli
	target/release/forebay demo

# Rows of stages run beside each other: end-to-end tests mostly wait, the compiler never does. All stages run; the seconds of each are
# printed, and which failed.
test:
	@scripts/setup test
	@scripts/stages build-tests + e2e -- lint unit doc
	@echo "make test: everything passed"

# Everything of `make test`, and with the program as it is shipped: all end-to-end tests, also the long ones, the instructions of
# requests, one mutant of the engine, and each experiment of the lab at its smallest. Its last result: docs/internals/testing.md.
test-all: test
	@scripts/setup all
	@scripts/stages build e2e-all instructions mutants lab
	@echo "make test-all: everything passed"

# What is worth a look while working, in two to seven minutes.
quick:
	@scripts/quick

setup:
	@scripts/setup

build:
	cargo build --release --locked -p forebay-cli -p forebay-lab-host -p forebay-flashcache-model

# Programs and unit tests but those of the engine, which have bugs that can be planted: what end-to-end tests run has none. The two
# examples are programs that tests start: cargo builds none for `cargo test --tests`.
ENGINE = -p forebay-core -p forebay-sim
OTHERS = --workspace --exclude forebay-core --exclude forebay-sim
build-tests:
	cargo build $(OTHERS) --lib --bins --tests --example fake-daemon --example fuse-memory --locked

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

PYTHON = tests tests/power-cuts/run scripts/check-docs scripts/licenses scripts/mutants scripts/structure scripts/wrap-comments
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	target/venv/bin/ruff check --no-cache bench
	target/venv/bin/ruff format --no-cache --check bench
	target/venv/bin/ruff check --no-cache --config bench/ruff.toml $(PYTHON)
	target/venv/bin/ruff format --no-cache --config bench/ruff.toml --check $(PYTHON)
	scripts/check-docs
	scripts/licenses --check
	scripts/wrap-comments --check
	scripts/structure --check

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

# All crates, even if one fails (`make -k unit`): what failed is listed at the end. Then the arithmetic of the benchmarks and the
# rules of power cuts.
unit: unit-crates unit-engine unit-python

unit-crates: build-tests
	cargo test $(OTHERS) --lib --bins --tests --locked --no-fail-fast

unit-engine:
	cargo test $(ENGINE) --features forebay-sim/planted-bugs --lib --bins --tests --locked --no-fail-fast
	cargo test -p forebay-nbd-client --features planted-bugs --test it --locked simulation

unit-python:
	target/venv/bin/python -m pytest -q -p no:cacheprovider bench/tests
	target/venv/bin/python -m pytest -q -p no:cacheprovider tests/power-cuts

# What requests cost the engine, in instructions: fails if that grew. Two minutes, on a busy machine as well.
instructions: setup
	bench/instructions

# One change of the engine that nobody planned: that scripts/mutants works, not what it finds.
mutants: setup
	scripts/mutants --sample 1 --least 0 --fresh

e2e: build-tests
	scripts/e2e

# All of them, with the program as it is shipped.
e2e-all: build
	FOREBAY=target/release/forebay scripts/e2e --long

# The lab's style and tests, then all its experiments at their smallest: that they work and find wrong data, not how fast anything is.
lab: build
	lab/check
	cargo build --release --locked -p forebay-flashcache-model --example flash-bench
	lab/lab run all --smoke --fresh

# The figures of docs/results/performance.md, on this machine. Nearly an hour; `make bench COMPARE=--quick` takes ten minutes.
COMPARE ?=
bench: setup build
	bench/compare $(COMPARE)
	bench/restart

# Hours rather than seconds: a million crash points, and fifty kills under load.
sim-long: setup build
	cargo run --release --locked -p forebay-sim -- --crashes 1000000
	KILLS=50 FOREBAY=target/release/forebay scripts/e2e kill_loop
