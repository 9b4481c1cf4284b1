# SPDX-License-Identifier: Apache-2.0
# Short commands only. The build is meson's; the tests are tests/run's.
.PHONY: all build demo test quick long san rdma fuzz bench fmt lint tidy clean

all: build

build/build.ninja:
	meson setup build --buildtype=release

build: build/build.ninja
	ninja -C build

demo:
	./deploy/quickstart

test:
	./tests/run

quick:
	./tests/run --quick

long:
	./tests/run --long

san:
	./tests/run --san

rdma:
	./tests/run --only rdma

fuzz:
	./tests/run --only fuzz

bench: build
	./bench/run

fmt:
	./tests/lint --fix-format

lint:
	./tests/lint

tidy: build
	./tests/lint --tidy

clean:
	rm -rf build build-asan build-tsan build-fuzz
