# Every target does its own set-up in .venv; nothing else is needed beside Python 3.11+, git and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: cpu-logs demo memory test format docs pictures

$(STAMP): pyproject.toml constraints.txt .ci/install
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	.ci/install $(VENV)
	touch $@

demo: $(STAMP)
	$(BIN)/htam demo

# Runs on the CPU whose logs the memory is built from: recorded answers, measured here; wants a quiet machine.
CPU_LOGS := layer_norm group_norm_silu cross_entropy row_cumsum sum_middle depthwise_conv_2d rotary_embedding
cpu-logs: $(STAMP)
	rm -rf examples/logs/cpu-operators
	$(BIN)/htam optimize $(CPU_LOGS:%=examples/tasks/cpu/%.py) --arm feedback --backend cpu --steps 3 --fixed-steps --seed 0 \
		--llm replay:examples/cassettes/cpu-operators.jsonl --run examples/logs/cpu-operators
	rm -rf examples/logs/cpu-operators/best
	$(BIN)/htam logs pack examples/logs/cpu-operators

# The memory that travels with the package, from the shipped logs; nothing else needs a hand after it.
memory: $(STAMP)
	rm -rf .htam/shipped
	$(BIN)/htam memory build --store .htam/shipped --work .htam/work --name shipped --logs examples/logs --logs examples/lineage
	rm -rf artifacts/shipped/shipped
	cp -R .htam/shipped/shipped artifacts/shipped/

test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python -P -m pipeline.reference > docs/reference/cli.md

pictures: $(STAMP)
	$(BIN)/python -P docs/pictures.py
