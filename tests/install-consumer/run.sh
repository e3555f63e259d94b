#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD CMAKE COMPILER [libtorch]: installs BUILD, then builds and runs consumers of the package.
set -euo pipefail
build=$1 cmake=$2 compiler=$3 with=${4:-}
consumer=$(cd "$(dirname "$0")" && pwd)/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/before" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/before" "$work/prefix" # a package that knows where it was installed would fail from here on
prefix=$work/prefix
libdir=$(dirname "$(find "$prefix" -name pkgconfig -type d)")

echo "== nothing internal, and nothing of the build or the sources, is in the package"
[ -z "$(find "$prefix/include" -type f ! -path "$prefix/include/stretto/*")" ]
if grep -rlF -e "$build" -e "$(dirname "$0")" "$libdir/cmake" "$libdir/pkgconfig"; then exit 1; fi

echo "== every public header is in it"
sources=$(cd "$(dirname "$0")/../../include" && pwd)
missing=$(cd "$sources" && find . -name '*.hpp' | while read -r header; do
  [ -f "$prefix/include/$header" ] || echo "$header"
done)
[ -z "$missing" ] || { echo "not installed: $missing"; exit 1; }

echo "== find_package"
option=OFF
[ "$with" != libtorch ] || option=ON
"$cmake" -S "$consumer" -B "$work/consumer" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_PREFIX_PATH="$prefix" -DWITH_LIBTORCH=$option >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/consumer"
[ "$("$work/consumer/consumer")" = "mean 1.5, sum 3" ]
if [ "$with" = libtorch ]; then
  [ "$(RANK=0 WORLD_SIZE=1 "$work/consumer/libtorch_consumer")" = "one step" ]
else
  # A component that was not built is refused by name.
  if "$cmake" -S "$consumer" -B "$work/refused" -DCMAKE_PREFIX_PATH="$prefix" -DWITH_LIBTORCH=ON >"$work/log" 2>&1; then
    exit 1
  fi
  grep -q "STRETTO_WITH_TORCH=ON" "$work/log"
fi

echo "== pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
read -r -a flags < <(pkg-config --cflags stretto)
read -r -a libraries < <(pkg-config --libs stretto)
"$compiler" -std=c++20 "${flags[@]}" "$consumer/consumer.cc" "${libraries[@]}" -o "$work/by_pkg_config"
[ "$("$work/by_pkg_config")" = "mean 1.5, sum 3" ]

echo "== the program"
"$prefix/bin/stretto" --version | grep -qx "stretto $(pkg-config --modversion stretto)"
