# Two commands do everything:  make demo  (set-up and the main job),  make test  (set-up and the tests).
PYTEST_ARGS ?=

.PHONY: help demo test lint native-test wheel clean setup

help:
	@echo "make demo    set up and show the whole chain: 4 ducks as processes, a real model, one answer"
	@echo "make test    set up and run linters, type checks, native tests, fuzzing and the test suite"
	@echo "make setup   only the set-up: .venv, dependencies, native build"
	@echo "make wheel   build a wheel into dist/"
	@echo "make clean   remove .venv and everything that was built"

setup:
	@bash tools/setup.sh build

demo:
	@bash tools/setup.sh build
	@.venv/bin/duckctl demo

test:
	@bash tools/setup.sh test
	@$(MAKE) --no-print-directory lint native-test
	.venv/bin/python -m pytest $(PYTEST_ARGS)

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

native-test:
	bash tools/native_tests.sh

wheel:
	@bash tools/setup.sh build
	.venv/bin/python -m pip wheel --no-deps --no-build-isolation -w dist .

clean:
	rm -rf .venv build dist .setup.lock
