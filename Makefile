# Every target works on a new Debian or Ubuntu machine with Python 3.11 or newer.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
ASCEND := $(VENV)/share/kernelfarm/triton-ascend
GENERATED := kernelfarm/v1 kernelfarm/internal
# Bytecode is kept, also where the environment forbids it: else each process of a farm compiles all
# modules that it imports.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help setup demo test test-thorough test-times test-v3 goldens servers images-test lint types protos docs bench clean

help: ## Show this list.
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## Make .venv with everything that the farm, its client and its tests need.

# Only the client and the tests need torch; the services never import it. Its version is exact, because
# a newer build for accelerators takes gigabytes. triton-ascend installs its package as `triton` too, so
# it has a folder of its own, and only its lowering tool is used.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; set PYTHON=<python 3.11 or newer>"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "make: the venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	$(PIP) install -q torch==2.13.0
	$(PIP) install -q -c constraints.txt -e '.[farm,warm,dev]'
	test -d $(ASCEND)/triton || $(PIP) install -q --no-deps --target $(ASCEND) triton-ascend==3.2.0
	@touch $@

demo: setup ## Start a farm on loopback, compile real models for every vendor, check the numbers.
	@$(BIN)/python -m examples.demo

# Two processes share the tests by groups (tests/support/xdist_groups.py), the longest group first.
# Their OpenMP threads must not spin: both use all cores.
TEST_JOBS ?= 2
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadgroup --no-loadscope-reorder

test: setup ## Run the default test suite; as root, install the tools that it checks binaries with.
	@.ci/third_party_tools
	$(PYTEST) $(PYTEST_ARGS)

test-thorough: setup ## Run the sweeps, and property tests with three times as many examples.
	KERNELFARM_TEST_EXAMPLES=all $(BIN)/python -m pytest -m 'slow or not slow' $(PYTEST_ARGS)

test-times: PYTEST_ARGS += --durations=40 --durations-min=2
test-times: test ## Run the default test suite, and list the slowest tests.

# Tests that depend on the processor: numbers of whole programs, plans, loading. The CPU backend's own tests
# (tests/codegen_svc/emitters/llvm) always run for both levels of x86-64, if the processor has them.
V3_TESTS := tests/e2e/test_numerics.py tests/e2e/test_row_statistics.py \
  tests/e2e/test_loop_kinds.py tests/kernelfarm/client/loaders/test_cpu.py tests/codegen_svc/backends/cpu/test_artifacts.py \
  tests/kernelfarm/client/runtime/test_runner.py tests/kernelfarm/client/runtime/test_memory_of_calls.py \
  tests/kernelfarm/client/runtime/test_launched_variants.py tests/kernelfarm/client/test_compile_model.py

test-v3: setup ## Run the tests that depend on the processor for one without AVX-512.
	KERNELFARM_HOST_TARGET=cpu:x86-64-v3 $(BIN)/python -m pytest $(V3_TESTS) $(PYTEST_ARGS)

# Only the first run writes, in one process. The others fail if a text differs between hash seeds.
goldens: setup ## Rewrite the goldens of passes and emitters; review the difference like code.
	@modules=$$(grep -rl 'pytest\.mark\.golden' tests --include='test_*.py') && \
	{ EXPECTTEST_ACCEPT=1 $(BIN)/python -m pytest -q -n 0 -m golden $$modules >/dev/null || true; } && \
	find tests -name '*.py.bak' -delete && \
	$(BIN)/ruff format -q $$modules && \
	PYTHONHASHSEED=1 $(BIN)/python -m pytest -q -m golden $$modules && \
	PYTHONHASHSEED=2 $(BIN)/python -m pytest -q -m golden $$modules && \
	git --no-pager diff --stat -- tests

# The tests that use the servers of a farm, besides the cache's own tests.
SERVER_TESTS := tests/codegen_svc/edge tests/codegen_svc/worker tests/codegen_svc/sandbox \
  tests/codegen_svc/test_process.py tests/faults/test_hung_workers.py tests/faults/test_kill_at_each_stage.py \
  tests/faults/test_killed_lease_holders.py tests/faults/test_killed_workers.py tests/faults/test_lost_servers.py \
  tests/faults/test_stale_services.py

servers: setup ## Run the tests of cache and farm with every server of the matrix; reports missing ones as NOT RUN.
	$(PYTEST) tests/kernelfarm/cache --servers=all $(PYTEST_ARGS)
	@for server in redis-6.2 redis-7 valkey-9; do \
	  $(PYTEST) $(SERVER_TESTS) --farm-server=$$server $(PYTEST_ARGS) || exit 1; \
	done

# As root, on Debian or Ubuntu; deploy/README.md states the conditions.
images-test: setup ## Build all images, run the Helm chart's pods with podman, warm and serve with them.
	$(BIN)/python -m tools.images_test

lint: setup ## Check style, import contracts and protos.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/deptry .
	$(BIN)/deptry kernelfarm frontend_svc optimizer_svc codegen_svc --optional-dependencies-dev-groups dev
	cd protos && ../$(BIN)/buf lint

types: setup ## Check static types, strictly.
	$(BIN)/mypy

protos: setup ## Generate the protobuf and gRPC code.
	$(BIN)/python -m grpc_tools.protoc -I protos \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. \
	  $$(cd protos && find kernelfarm -name '*.proto' | sort)

docs: setup ## Generate the tables under docs/ from the code.
	$(BIN)/python -m frontend_svc.operators > docs/operators.md
	$(BIN)/python -m tools.settings_page > docs/settings.md

bench: setup ## Measure cold and warm starts, launches and models beside Inductor, compile time, the cache, a farm.
	$(BIN)/python -m benchmarks.cold_start
	$(BIN)/python -m benchmarks.trace_ways --models gpt2 --rounds 3 --cold-rounds 1
	$(BIN)/python -m benchmarks.warm_start --models reference bert --rounds 1
	$(BIN)/python -m benchmarks.launches
	$(BIN)/python -m benchmarks.peak_memory
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.models --inductor
	$(BIN)/python -m benchmarks.cache
	$(BIN)/python -m benchmarks.farm
	$(BIN)/python -m benchmarks.fleet

clean: ## Remove the files that setup made.
	rm -rf $(VENV) *.egg-info build dist
