# `make demo` shows what Forebay does, `make test` checks everything. Both install what is missing (see scripts/setup).
.PHONY: demo test setup build lint unit instructions e2e lab bench sim-long

demo: setup
	cargo build --release --locked -p forebay-cli
	target/release/forebay demo

# The steps run one after the other, and the first that fails ends it.
test:
	@scripts/setup lab
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory instructions
	$(MAKE) --no-print-directory e2e
	$(MAKE) --no-print-directory lab
	@echo "make test: everything passed"

setup:
	@scripts/setup

build:
	cargo build --release --locked -p forebay-cli -p forebay-lab-host -p forebay-flashcache-model

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	target/venv/bin/ruff check --no-cache bench
	target/venv/bin/ruff format --no-cache --check bench
	target/venv/bin/ruff check --no-cache --config bench/ruff.toml scripts/check-docs scripts/mutants scripts/structure tests/golden-caches/golden.py
	target/venv/bin/ruff format --no-cache --config bench/ruff.toml --check scripts/check-docs scripts/mutants scripts/structure tests/golden-caches/golden.py
	scripts/check-docs
	lab/check style
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

# All crates, even if one fails: what failed is listed at the end. Then the arithmetic of the benchmarks.
unit:
	cargo test --workspace --locked --no-fail-fast
	target/venv/bin/python -m pytest -q -p no:cacheprovider bench/tests

# What requests cost the engine, in instructions: fails if that grew. Two minutes, on a busy machine as well.
instructions: setup
	bench/instructions

e2e: build
	scripts/run-tests

# The lab's tests, then all its experiments at their smallest: that they work and find wrong data, not how fast anything is.
# The model of flash is taken as the tests have built it.
lab: build
	lab/check tests
	cargo build --locked -p forebay-sim --example flash-bench
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
