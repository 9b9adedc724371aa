# hob: what there is to do. `make` alone prints it.

PREFIX ?= /usr/local
DESTDIR ?=
# A packager's PREFIX is /usr, and its configuration /etc; so is that of /usr/local.
SYSCONFDIR ?= /etc
CARGO ?= cargo

BINDIR := $(DESTDIR)$(PREFIX)/bin
LIBDIR := $(DESTDIR)$(PREFIX)/lib
DATADIR := $(DESTDIR)$(PREFIX)/share
CONFDIR := $(DESTDIR)$(SYSCONFDIR)/hob
BASH_COMPLETION := $(DATADIR)/bash-completion/completions/hob
ZSH_COMPLETION := $(DATADIR)/zsh/site-functions/_hob
FISH_COMPLETION := $(DATADIR)/fish/vendor_completions.d/hob.fish
RELEASE := target/release
MODELS := $(or $(HOB_MODELS),target/models)
# Of both programs that measure: --force where the machine is busy.
BENCH_FLAGS ?=

UNITS := system/hobd.service system/hobd.socket user/hobd.service user/hobd.socket

.DEFAULT_GOAL := help
.PHONY: help deps build demo test check soak clients bench shader-stats models drivers install uninstall

help: ## Print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

deps: ## Install by apt what is missing to build and run hob
	@tests/make/deps.sh demo

build: ## Build hob and hobd (target/release)
	@tests/make/deps.sh build
	$(CARGO) build --locked --release --bins

demo: ## See a small language model answer
	@tests/make/deps.sh demo
	$(CARGO) build --locked --release --bins
	@tests/models/fetch.sh smollm2
	@tests/make/demo.sh

test: ## Run all tests, on several Vulkan drivers; no GPU needed
	@tests/make/deps.sh test
	@tests/models/fetch.sh
	@tests/make/test.sh

check: ## Check format, lints, licences, structure, scripts
	@tests/make/check.sh

soak: ## Let a crowd of clients loose on the engine for ten minutes
	HOB_SOAK_SECONDS=600 HOB_KILLS=100 \
		$(CARGO) test --locked --test server_soak --test server_kills -- --nocapture

clients: build ## Run other people's clients against the daemon
	BIN=$(RELEASE) HOB_MODELS=$(MODELS) tests/clients/run.sh

bench: build ## Measure hob on this machine's device, and beside llama.cpp
	@tests/models/fetch.sh
	$(RELEASE)/hob bench --model $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf --sessions 1,8 --profile $(BENCH_FLAGS)
	@if command -v npm >/dev/null; then \
		tests/drivers/unpack.sh lavapipe-26.1 lavapipe-25.0 && \
		tests/benches/peer/compare.mjs --drivers lavapipe-26.1,lavapipe-25.0 $(BENCH_FLAGS); \
	else echo "not compared with llama.cpp: node 20 or newer, with npm, is not here"; fi

shader-stats: ## Show what AMD's compiler makes of every shader; no GPU needed
	@tests/make/shader-stats.sh

models: ## Fetch the models of the demo and the tests (target/models)
	@tests/models/fetch.sh

drivers: ## Unpack the drivers of the tests (target/drivers)
	@tests/drivers/unpack.sh

# Building is a step of its own: it is done as a user, and this as root.
install: ## Install what `make build` has built (PREFIX, DESTDIR)
	@test -x $(RELEASE)/hobd || { echo "nothing is built yet: make build" >&2; exit 1; }
	install -d $(BINDIR) $(LIBDIR)/systemd/system $(LIBDIR)/systemd/user $(LIBDIR)/sysusers.d
	install -m 755 $(RELEASE)/hob $(RELEASE)/hobd $(BINDIR)/
	for unit in $(UNITS); do \
		sed 's|/usr/bin/hobd|$(PREFIX)/bin/hobd|; s|/etc/hob/|$(SYSCONFDIR)/hob/|' systemd/$$unit \
			>$(LIBDIR)/systemd/$$unit && chmod 644 $(LIBDIR)/systemd/$$unit || exit 1; \
	done
	install -m 644 systemd/sysusers.d/hob.conf $(LIBDIR)/sysusers.d/
	install -d $(CONFDIR)
	test -e $(CONFDIR)/hobd.toml || install -m 644 config/hobd.toml $(CONFDIR)/
	install -d $(DATADIR)/doc/hob
	install -m 644 README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE config/protocol.md \
		$(DATADIR)/doc/hob/
	install -d $(DATADIR)/man/man1 $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION))
	$(RELEASE)/hob man $(DATADIR)/man/man1
	$(RELEASE)/hob completions bash >$(BASH_COMPLETION)
	$(RELEASE)/hob completions zsh >$(ZSH_COMPLETION)
	$(RELEASE)/hob completions fish >$(FISH_COMPLETION)

uninstall: ## Remove what `make install` installed, but not its configuration
	rm -f $(BINDIR)/hob $(BINDIR)/hobd $(LIBDIR)/sysusers.d/hob.conf
	rm -f $(addprefix $(LIBDIR)/systemd/,$(UNITS))
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)
	rm -f $(DATADIR)/man/man1/hob.1 $(DATADIR)/man/man1/hobd.1 $(DATADIR)/man/man1/hob-*.1
	rm -rf $(DATADIR)/doc/hob
