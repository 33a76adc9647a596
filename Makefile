# The verbs a contributor needs. `make up` and `make test` are all the set-up there is.
SHELL := /bin/bash
PROVIDERS := simulated docker proxmox aws kubeadm-bootstrap kubeadm-control-plane
WASM_TARGET := wasm32-unknown-unknown
GUEST_BUILD := providers/target/$(WASM_TARGET)/release
CAPSTAN := target/release/capstan
export PATH := $(CURDIR)/target/tools:$(CURDIR)/target/tools/bin:$(PATH)

.PHONY: build host providers up test lint fast scenarios leak images image bench clean wasm-target

build: host providers ## target/release/capstan and target/providers/*.wasm

host:
	cargo build --locked --release -p capstan -p capstan-simulator

wasm-target:
	@[ -d "$$(rustc --print target-libdir --target $(WASM_TARGET) 2>/dev/null)" ] || rustup target add $(WASM_TARGET)

providers: host wasm-target
	cargo build --locked --release --target $(WASM_TARGET) --manifest-path providers/Cargo.toml \
		$(foreach p,$(PROVIDERS),-p $(p))
	@mkdir -p target/providers
	@for p in $(PROVIDERS); do \
		$(CAPSTAN) provider package $(GUEST_BUILD)/$$(echo $$p | tr - _).wasm -o target/providers/$$p.wasm || exit 1; \
	done

up: build ## a management plane with the quickstart cluster, here
	$(CAPSTAN) up $(ARGS)

test: ## everything CI runs: lints, rules, contract, scenarios
	tests/setup.sh
	$(MAKE) --no-print-directory build
	$(MAKE) --no-print-directory lint fast scenarios
	@if [ -s target/test-skips ]; then echo "NOT ALL TESTS RAN:"; cat target/test-skips; fi

lint:
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path providers/Cargo.toml
	cargo clippy --locked --release --workspace --all-targets -- -D warnings
	cargo clippy --locked --manifest-path providers/Cargo.toml --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check bans licenses sources; fi

fast: ## rules, contract, components: no engine, no kubectl
	cargo test --locked --release --workspace --exclude capstan-tests
	cargo test --locked --manifest-path providers/Cargo.toml

scenarios: ## the whole system: a real kubectl, a real engine
	tests/scenarios.sh $(basename $(notdir $(wildcard tests/tests/*)))

# Whose cases are lived; docs/providers/leaks.md is written by a run of all.
LEAK := simulated proxmox docker aws

leak: ## every fault at every exchange of a provider; writes docs/providers/leaks.md; CASE='…', LIFE='…' run a part again
ifdef CASE
	CAPSTAN_LEAK_CASE="$(CASE)" cargo test --locked --release --workspace --test in_tree -- \
		--ignored --test-threads=1 --nocapture leak::
else
	@$(if $(LIFE),,rm -rf target/leak;) mkdir -p target/leak docs/providers
	CAPSTAN_LEAK_SUMMARY=$(CURDIR)/target/leak CAPSTAN_LEAK_LIFE="$(LIFE)" cargo test --locked --release --workspace --test in_tree -- \
		--ignored --test-threads=1 --nocapture $(foreach p,$(LEAK),leak::$(p))
	@cat sdk/testkit/tests/in_tree/leak/summary.md target/leak/*.md >docs/providers/leaks.md
endif

images: host ## the images that examples/docker.yaml uses, built locally
	tests/node-image/build.sh target/release/kubeadm-stand-in

# What the image of deploy/capstan.yaml is called, and which components are in it.
IMAGE := capstan/capstan:dev
IMAGE_PROVIDERS := proxmox aws kubeadm-bootstrap kubeadm-control-plane

image: build ## the image of deploy/capstan.yaml, for the Docker Engine of this machine
	deploy/image.sh $(IMAGE) $(foreach p,$(IMAGE_PROVIDERS),target/providers/$(p).wasm)

bench: ## the embedded API server beside kube-apiserver and etcd; docs/benchmarks.md
	cargo build --locked --release --workspace --example bench
	@mkdir -p target/bench
	TMPDIR=$(CURDIR)/target/bench target/release/examples/bench

clean:
	cargo clean
	cargo clean --manifest-path providers/Cargo.toml
