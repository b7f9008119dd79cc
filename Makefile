# Each recipe is one line that you could type yourself. Longer ones are scripts in .ci/.

.PHONY: demo check test test-flux e2e e2e-demo e2e-jobset e2e-nodes chaos e2e-gang e2e-autoscale e2e-kueue e2e-tracing lint bench test-python-flux bench-journey bench-quorum bench-brokers bench-instance bench-scale images generate dist release reproduce

demo: ; @.ci/demo

check: ; @.ci/check

test: ; @.ci/test

test-flux: ; @FLUX=$(FLUX) .ci/test-flux

test-python-flux: ; @FLUX=$(FLUX) .ci/python flux

e2e: ; @.ci/e2e

e2e-demo: ; @DEMO=1 FLUX=$(FLUX) .ci/e2e

e2e-jobset: ; @JOBSET=1 FLUX=$(FLUX) .ci/e2e

e2e-nodes: ; @NODES=1 SHORT=$(SHORT) FLUX=$(FLUX) .ci/e2e

chaos: ; @CHAOS_SECONDS=$(or $(SECONDS),3600) SEED=$(or $(SEED),1) NODES=1 FLUX=$(FLUX) .ci/e2e

e2e-gang: ; @GANG=$(or $(GANG),1) .ci/e2e

e2e-tracing: ; @TRACING=1 .ci/e2e

e2e-kueue: ; @KUEUE=1 FLUX=$(FLUX) .ci/e2e

e2e-autoscale: ; @AUTOSCALE=1 FLUX=$(FLUX) .ci/e2e

lint: ; @.ci/lint

bench: ; @.ci/bench

bench-journey: ; @KUBECONFIG=$(KUBECONFIG) FLUX=$(FLUX) .ci/bench journey

bench-quorum: ; @FLUX=$(FLUX) .ci/bench quorum

bench-brokers: ; @FLUX=$(FLUX) .ci/bench brokers

bench-scale: ; @.ci/bench scale

bench-instance: ; @FLUX=$(FLUX) .ci/bench instance

images: ; @.ci/dist images && .ci/images

# The first command writes the shapes by which `validate` knows the fields. The second one builds everything with the new shapes.
generate: ; @UPDATE=1 cargo test --workspace --lib the_shapes_are_those_of_the_schema && UPDATE=1 cargo test --workspace --no-fail-fast && .ci/python generate

dist: ; @.ci/dist

release: ; @.ci/release

reproduce: ; @.ci/reproduce
