# The whole project in two commands: `make setup`, `make test`. POSIX make; every target stands in `make help`.
.POSIX:

PYTHON = python3
BIN = .venv/bin
JOBS = 4
ARGS =
SOAKED = tests/agents tests/browser tests/control tests/domain tests/health tests/scheduler tests/simulator tests/store/service/test_crashes.py tests/train/data/test_segments.py tests/train/parallel tests/train/reproducibility tests/train/test_reference_programs.py tests/train/values tests/watch/progress tests/watch/stragglers tests/workers/host/launcher/test_rendezvous_host.py tests/workers/host/supervisor/test_root_causes.py tests/workers/local/test_hangs.py
BASE = HEAD
BUDGET = 60

help:
	@echo 'make setup       the locked environment in .venv (TORCH=auto|cuda|skip, PYTHON=python3.11)'
	@echo 'make up          the whole control plane on this machine (ARGS=--exit: start, prove, stop)'
	@echo 'make wheels      muster-client, muster-train and muster-base in console/wheels, which the control plane serves at /install'
	@echo 'make test        every test, on real PostgreSQL and a real broker (ARGS="-k placement")'
	@echo 'make quick       lint, types and the tests that a change can reach, within a minute (BASE=rev, BUDGET=seconds)'
	@echo 'make durations   tests/durations.json from the last make test of all tests, by which make quick chooses'
	@echo 'make second-look  the few tests that failed in the last run, again and alone; records each that passes now'
	@echo 'make mutants     25 seeded one-line changes of the code that decides, each against its nearest tests: none survives (20 min)'
	@echo 'make lint        style and formatting'
	@echo 'make words       refused words of docs/glossary.md: there must be none (ARGS=PATH, ARGS=--count)'
	@echo 'make types       static types'
	@echo 'make contracts   which package may import which'
	@echo 'make migrations  the schema goes up, down and up again, and matches the models'
	@echo 'make openapi     docs/openapi.json, the document of the API; openapi-check: it is up to date, and breaks no client without a line in CHANGELOG.md'
	@echo 'make policy-reference  docs/reference/policy.md, the policy as its schema describes it; -check: it is up to date'
	@echo 'make xid-reference     docs/reference/xid.md, what each XID is and where other tools judge it otherwise; -check: as above'
	@echo 'make detector-reference  docs/reference/detectors.md, what each detector finds and the source that reports it; -check: as above'
	@echo 'make figure-reference  docs/reference/figures.md, what each indicator means; -check: as above'
	@echo 'make job-schema      docs/reference/job.schema.json, the JSON Schema of a job file; -check: as above'
	@echo 'make layers      picture and table of the layers in ARCHITECTURE.md, from .importlinter; -check: as above'
	@echo 'make check       test, lint, words, types, contracts, migrations, openapi-check, the -check of each page'
	@echo 'make screenshot  docs/fleet.png, the picture in README.md, by the test of that page in Chromium'
	@echo 'make api-cases   1,500 requests of any kind: no failure, no answer that the document does not name'
	@echo 'make soak        the long simulation, with crashes, 10,000 requests of any kind, training that is killed often'
	@echo 'make bench-smoke  every suite of benchmarks at its smallest size, no bar judged: do they still work?'
	@echo 'make bench-stale  the results that were measured by an older state of their own benchmark'
	@echo 'make release     may this commit be released: clean, in the changelog, no stale result, all checks'
	@echo 'make bench       the measured bars; also bench-setup, -placement, -scheduler, -judgement, -health, -ingest, -host, -tour, -console, -runtime, -recovery, -roundtrip, -watch, -ledger, -runtime-gpu, -gpu-host, -soak, -house'
	@echo 'make lock        constraints.txt, written again (needs uv)'
	@echo 'make newest      the tests with the newest versions the bounds allow'
	@echo 'make clean       removes the environment and every cache; never the state in .muster'

setup:
	@$(PYTHON) -m tools.setup_environment

up: wheels
	@$(BIN)/muster up $(ARGS)

wheels: setup
	@$(BIN)/python -m tools.build_client_wheel --all

test: setup
	@unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -p tools.record_durations $(ARGS)

quick: setup
	@$(BIN)/python -m tools.quick --base $(BASE) --budget $(BUDGET) $(ARGS)

durations: setup
	@$(BIN)/python -m tools.test_durations

second-look: setup
	@$(BIN)/python -m tools.second_check

mutants: setup
	@nice -n 10 $(BIN)/python -m tools.mutants --decisions $(ARGS)

lint: setup
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

words: setup
	@$(BIN)/python -m tools.words $(ARGS)

types: setup
	@$(BIN)/mypy

contracts: setup
	@$(BIN)/lint-imports

migrations: setup
	@$(BIN)/python -m tools.check_migrations

openapi: setup
	@$(BIN)/python -m tools.openapi_document

openapi-check: setup
	@$(BIN)/python -m tools.openapi_document --check

policy-reference: setup
	@$(BIN)/python -m tools.policy_reference

policy-reference-check: setup
	@$(BIN)/python -m tools.policy_reference --check

xid-reference: setup
	@$(BIN)/python -m tools.xid_reference

xid-reference-check: setup
	@$(BIN)/python -m tools.xid_reference --check

detector-reference: setup
	@$(BIN)/python -m tools.detector_reference

detector-reference-check: setup
	@$(BIN)/python -m tools.detector_reference --check

figure-reference: setup
	@$(BIN)/python -m tools.figure_reference

figure-reference-check: setup
	@$(BIN)/python -m tools.figure_reference --check

job-schema: setup
	@$(BIN)/python -m tools.job_schema

job-schema-check: setup
	@$(BIN)/python -m tools.job_schema --check

layers: setup
	@$(BIN)/python -m tools.layers_picture
	@$(BIN)/python -m tools.layers_table

layers-check: setup
	@$(BIN)/python -m tools.layers_picture --check
	@$(BIN)/python -m tools.layers_table --check

check: test lint words types contracts migrations openapi-check policy-reference-check xid-reference-check detector-reference-check figure-reference-check job-schema-check layers-check

screenshot: setup
	@PICTURE=docs/fleet.png $(BIN)/python -m pytest -q tests/browser/test_picture.py -k pictured

api-cases: setup
	@MUSTER_API_CASES=1500 $(BIN)/python -m pytest -n 2 tests/api/test_any_request.py $(ARGS)

soak: setup
	@$(BIN)/python -m simulator --seeds 10000 --jobs $(JOBS) $(ARGS)
	@$(BIN)/python -m simulator --bugs --jobs $(JOBS)
	@MUSTER_SOAK=1 $(BIN)/python -m pytest -n $(JOBS) $(SOAKED)
	@$(BIN)/python -m tools.mutants --decisions --number 200 --jobs 2
	@MUSTER_API_CASES=10000 $(BIN)/python -m pytest -n $(JOBS) tests/api/test_any_request.py
	@$(BIN)/python -m benchmarks.roundtrip_kills 200
	@$(BIN)/python -m benchmarks.ledger_crashes 1000
	@$(BIN)/python -m benchmarks soak

bench: setup
	@$(BIN)/python -m benchmarks

bench-setup: setup
	@$(BIN)/python -m benchmarks setup

bench-placement: setup
	@$(BIN)/python -m benchmarks placement

bench-scheduler: setup
	@$(BIN)/python -m benchmarks scheduler

bench-health: setup
	@$(BIN)/python -m benchmarks health

bench-judgement: setup
	@$(BIN)/python -m benchmarks judgement

bench-host: setup
	@$(BIN)/python -m benchmarks host

bench-tour: setup
	@$(BIN)/python -m benchmarks tour

bench-console: setup
	@$(BIN)/python -m benchmarks console

bench-runtime: setup
	@$(BIN)/python -m benchmarks runtime

bench-recovery: setup
	@$(BIN)/python -m benchmarks recovery

bench-roundtrip: setup
	@$(BIN)/python -m benchmarks roundtrip

bench-watch: setup
	@$(BIN)/python -m benchmarks watch

bench-runtime-gpu: setup
	@$(BIN)/python -m benchmarks runtime_gpu

bench-gpu-host: setup
	@$(BIN)/python -m benchmarks gpu_host

bench-gpu-stack: setup
	@$(BIN)/python -m benchmarks gpu_stack

bench-soak: setup
	@$(BIN)/python -m benchmarks soak

bench-ledger: setup
	@$(BIN)/python -m benchmarks ledger

bench-house: setup
	@$(BIN)/python -m tools.house --write $(ARGS)

bench-ingest: setup
	@$(BIN)/python -m benchmarks ingest

bench-smoke: setup
	@unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m benchmarks --smallest

bench-stale: setup
	@$(BIN)/python -m benchmarks.stale

release: setup
	@$(BIN)/python -m tools.release

lock:
	@$(PYTHON) -m tools.lock_versions

newest:
	@ARGS="$(ARGS)" $(PYTHON) -m tools.newest_versions

clean:
	rm -rf .venv .artefacts console/static/vendor console/wheels .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup up wheels test quick durations second-look mutants lint words types contracts migrations openapi openapi-check policy-reference policy-reference-check xid-reference xid-reference-check detector-reference detector-reference-check figure-reference figure-reference-check job-schema job-schema-check check layers layers-check screenshot api-cases soak bench bench-setup bench-placement bench-scheduler bench-health bench-judgement bench-host bench-tour bench-console bench-runtime bench-recovery bench-watch bench-roundtrip bench-ledger bench-runtime-gpu bench-gpu-host bench-gpu-stack bench-soak bench-house bench-ingest bench-smoke bench-stale release lock newest clean
