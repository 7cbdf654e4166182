# Two commands for a newcomer: `make demo` and `make test`. Everything they lack is installed by
# tools/setup, which says what it does. `make help` lists the rest.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO      ?= go
LDFLAGS  = -s -w -X main.version=$(VERSION)
BIN      = bin/verbena
GUEST    = bin/verbena-guest
GOLANGCI = v2.15.0

.PHONY: help build demo test test-fast bench lint fuzz smoke-lab lab lab-test setup setup-test openapi clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## build bin/verbena and, for inside VMs, bin/verbena-guest (static, stripped)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN) ./cmd/verbena
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o $(GUEST) ./cmd/verbena-guest

demo: setup build ## run the main job on four simulated hypervisors and stay up (ONCE=1 to end after the story)
	$(BIN) demo $(if $(ONCE),--once)

setup: ## check the tools that building needs
	@tools/setup build

setup-test: ## install what the tests need (libvirt daemon and tools, xmllint, etcd)
	@tools/setup test

test: setup-test build ## run all tests with the race detector
	tools/test

test-fast: ## run all tests without the race detector
	$(GO) test ./...

fuzz: ## run every fuzz target for a few seconds (FUZZTIME=10s)
	tools/fuzz $(or $(FUZZTIME),10s)

bench: ## benchmarks with their baselines, in one run
	tools/bench

lint: ## golangci-lint (all linters, see .golangci.yml), go vet, shell scripts
	@tools/setup lint $(GOLANGCI)
	tools/lint

openapi: ## rewrite api/openapi.json from the code
	$(GO) test ./internal/server -run TestOpenAPI -update

smoke-lab: build ## the main job on one emulated hypervisor with a real kernel (QEMU, no KVM needed)
	lab/smoke.sh

lab: build ## a rack of two emulated hypervisors and a switch that stays up until Ctrl-C
	lab/lab.sh up

lab-test: build ## the acceptance story on that rack: RDMA between VMs, isolation, crashes, a reboot (LANES="fast full")
	VERBENA_LAB_LANES="$(or $(LANES),fast full)" lab/lab.sh test

clean: ## remove build output
	rm -rf bin
