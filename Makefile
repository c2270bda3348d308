# The targets are for people; each is one or two commands that can be run by hand. `make help` lists them.
#
#   make demo KEEP=1    leave the demo's sigmaOS running
#   make test           everything; ends with a line "N passed, N failed, N skipped"

PREFIX  ?= /usr/local
DESTDIR ?=
FUZZ    ?= 10s

# Root is needed to make procs. SUDO is empty for root; PATH is kept because Go and Rust are often not where sudo looks.
SUDO   := $(if $(filter-out 0,$(shell id -u)),sudo)
ROOT    = $(if $(SUDO),$(SUDO) env PATH="$(PATH)")
TESTRUN = go run ./internal/testrun
GOBUILD = CGO_ENABLED=0 go build -trimpath

.DEFAULT_GOAL := build
.NOTPARALLEL:
.PHONY: help setup build demo test unit system test-vm test-store test-library test-mount fuzz bench lint install clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

setup: ## install missing Debian packages, check for Go and Rust
	@scripts/setup

# Both tools know what is up to date, so a second run takes as long as asking them.
build: ## build every program into bin/
	@mkdir -p bin
	$(GOBUILD) -o bin/ ./cmd/...
	cd launcher && cargo build --quiet --release --locked # in there, so that its .cargo/config.toml makes it static
	@cmp -s $(CARGO_OUT)/launcher bin/launcher || install -m 755 $(CARGO_OUT)/launcher bin/launcher

CARGO_OUT = $(or $(CARGO_TARGET_DIR),launcher/target)/x86_64-unknown-linux-gnu/release

demo: setup build sudo ## boot a machine, count the words of the Go source tree, check, shut down
	$(ROOT) bin/demo $(if $(filter-out 0,$(KEEP)),--keep)

test: setup build ## everything: format, vet, unit, Rust, fuzz, system tests
	@$(TESTRUN)

unit: ## go test ./..., which needs no root
	@$(TESTRUN) gofmt vet unit

system: setup build ## the tests that need root
	@$(TESTRUN) system alone

test-vm: ## the container tests on Debian 12's kernel (6.1, cgroup v2) in qemu: half an hour, or RUN=REGEXP for some of them: minutes
	@RUN='$(RUN)' $(TESTRUN) vm

test-store: ## the tests of objects against a store that is built from the Go registry first (versitygw): two minutes
	@mkdir -p bin/test && GOBIN=$(CURDIR)/bin/test go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	SIGMA_TEST_VERSITYGW=$(CURDIR)/bin/test/versitygw go test -count=1 ./trees/s3/...

test-library: ## the tests of a client library of Redis (go-redis), of commands that a cache has: two minutes
	@rm -rf bin/test/go-redis && mkdir -p bin/test && go mod download github.com/redis/go-redis/v9
	@cp -r "$$(go list -m -f '{{.Dir}}' github.com/redis/go-redis/v9)" bin/test/go-redis && chmod -R u+w bin/test/go-redis
	cd bin/test/go-redis && GOFLAGS=-mod=mod go test -vet=off -c -o ../go-redis.test .
	@rm -rf bin/test/go-redis
	SIGMA_TEST_GOREDIS=$(CURDIR)/bin/test/go-redis.test go test -count=1 -run TestLibrarySuite -v ./apps/cache/text

test-mount: build ## pjdfstest and tests of Python's library on a mount, against the list of what fails there: three minutes
	@scripts/setup libpython3.11-testsuite
	cargo install --quiet --locked --root bin/test pjdfstest@0.2.2
	SIGMA_TEST_PJDFSTEST=$(CURDIR)/bin/test/bin/pjdfstest go test -count=1 -timeout 30m -tags system -run TestSuites ./test/mount

fuzz: ## every fuzz target for FUZZ (10s) each
	@$(TESTRUN) -fuzztime $(FUZZ) fuzz

bench: setup build sudo ## all benches, quick; bin/bench list names them
	$(ROOT) bin/bench all --quick

lint: ## format, vet, our own rules, clippy
	@$(TESTRUN) gofmt vet
	go test -v -run TestCount ./internal/tidy
	go test ./internal/tidy
	cd launcher && cargo fmt --check && cargo clippy --quiet --release --locked --all-targets -- -D warnings

# Programs find each other beside the one that was started, so they are kept together and `sigma` is a link.
install: build ## install into PREFIX (/usr/local)
	install -d $(DESTDIR)$(PREFIX)/lib/sigmaos $(DESTDIR)$(PREFIX)/bin
	install -m 755 bin/* $(DESTDIR)$(PREFIX)/lib/sigmaos/
	ln -sf ../lib/sigmaos/sigma $(DESTDIR)$(PREFIX)/bin/sigma

clean: ## remove what build made
	rm -rf bin launcher/target

.PHONY: sudo
sudo:
	@if [ -n "$(SUDO)" ] && ! command -v sudo >/dev/null 2>&1; then \
		echo "making procs needs root: run this as root, or install sudo" >&2; exit 1; fi
