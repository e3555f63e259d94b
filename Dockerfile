# SPDX-License-Identifier: Apache-2.0
# Debian 12 with everything that the demo needs, built:
#   docker build -t stretto . && docker run --rm stretto
# Ranks of one container share memory by descriptor: the size of /dev/shm does not matter.
FROM debian:12-slim
WORKDIR /stretto
# The lists first, so that a change of code does not install again.
COPY tools/setup tools/setup
COPY tools/packages tools/packages
RUN tools/setup build torch && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DSTRETTO_WITH_TORCH=ON -DSTRETTO_BUILD_TESTS=OFF \
    && cmake --build --preset release --target stretto fashion_mnist
CMD ["./demo"]
