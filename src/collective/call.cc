// SPDX-License-Identifier: Apache-2.0
#include "collective/call.hpp"

namespace stretto::collective {
namespace {

std::string elements_of(const Call& call) {
  return " of " + std::to_string(call.count) + " elements of " +
         std::string(to_string(call.dtype)) +
         (call.reduction == Reduction::kMean ? " (mean)" : " (sum)");
}

}  // namespace

std::string to_string(const Call& call) {
  switch (call.kind) {
    case Kind::kAllReduce:
      return "all_reduce" + elements_of(call);
    case Kind::kReduceScatter:
      return "reduce_scatter" + elements_of(call);
    case Kind::kAllGather:
      return "all_gather of " + std::to_string(call.count) + " bytes";
    case Kind::kBroadcast:
      return "broadcast of " + std::to_string(call.count) + " bytes from rank " +
             std::to_string(call.root);
    case Kind::kBarrier:
      return "barrier";
  }
  return "a collective of another version of Stretto";
}

EngineOptions for_collectives(EngineOptions options) {
  if (options.chunk_bytes == 0) {
    options.chunk_bytes = EngineOptions::kAutomatic;
  }
  return options;
}

}  // namespace stretto::collective
