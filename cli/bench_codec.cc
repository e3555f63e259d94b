// SPDX-License-Identifier: Apache-2.0
//
// stretto bench codec: how fast one core encodes and decodes, beside memcpy in the same run, and
// whether what comes back is as near as the codec promises.
#include "codec/factory.hpp"
#include "codec_trial.hpp"
#include "command.hpp"

#include "stretto/options.hpp"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace stretto::cli {
namespace {

struct CodecOptions {
  std::vector<std::string> codecs;
  std::string size = "100m";
  std::string distribution = "heavy";
  std::string dtype = "float32";
  double seconds = 2;
};

DType dtype_of(const std::string& name) {
  return name == "float16"    ? DType::kFloat16
         : name == "bfloat16" ? DType::kBFloat16
                              : DType::kFloat32;
}

void print(const std::string& name,
           const CodecFigures& figures,
           const GradientKind& kind,
           bool json) {
  if (json) {
    nlohmann::ordered_json line{{"codec", name},
                                {"encode_gbps", figures.encode_gbps},
                                {"decode_gbps", figures.decode_gbps},
                                {"memcpy_gbps", figures.memcpy_gbps},
                                {"ratio", figures.ratio},
                                {"share", figures.share()},
                                {"touched_bytes_per_element", figures.touched_bytes_per_element},
                                {"limit_share", figures.limit_share(kind.dtype)},
                                {"max_error", figures.max_error},
                                {"bound_ok", figures.bound_ok},
                                {"refused", figures.refused},
                                {"residual_ratio", figures.residual_ratio},
                                {"bytes", kind.bytes},
                                {"distribution", kind.distribution},
                                {"dtype", std::string(to_string(kind.dtype))}};
    std::cout << line.dump() << std::endl;
    return;
  }
  std::printf("%-26s %8.2f %8.2f %8.2f %6.2f %8.2f %7.2f %6.2f %10.2e%s\n",
              name.c_str(),
              figures.encode_gbps,
              figures.decode_gbps,
              figures.memcpy_gbps,
              figures.share(),
              figures.ratio,
              figures.touched_bytes_per_element,
              figures.limit_share(kind.dtype),
              figures.max_error,
              figures.bound_ok ? "" : "  BEYOND ITS BOUND");
  static_cast<void>(std::fflush(stdout));
}

Result<int> bench_codec(const CodecOptions& options, const Context& context) {
  GradientKind kind;
  kind.distribution = options.distribution;
  kind.dtype = dtype_of(options.dtype);
  STRETTO_TRY_ASSIGN(kind.bytes, parse_bytes(options.size));
  std::vector<std::string> names = options.codecs;
  if (names.empty()) {
    names.assign(codec::codec_names().begin(), codec::codec_names().end());
  }
  std::vector<std::shared_ptr<const spi::Codec>> codecs;
  for (const std::string& name : names) {
    STRETTO_TRY_ASSIGN(auto made, codec::make_codec(name));
    codecs.push_back(std::move(made));
  }
  if (!context.json) {
    std::printf("%zu bytes of %s, %s, on one core; GB/s of gradient\n",
                kind.bytes,
                options.dtype.c_str(),
                options.distribution.c_str());
    std::printf("%-26s %8s %8s %8s %6s %8s %7s %6s %10s\n",
                "codec",
                "encode",
                "decode",
                "memcpy",
                "share",
                "ratio",
                "touched",
                "limit",
                "max error");
  }
  bool all_ok = true;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    CodecTrial trial(codecs[i], kind);
    STRETTO_TRY_ASSIGN(const CodecFigures figures,
                       trial.measure(std::chrono::duration<double>(options.seconds)));
    all_ok = all_ok && figures.bound_ok;
    print(names[i], figures, kind, context.json);
  }
  return all_ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_bench_codec(CLI::App& bench, Context& context) {
  // Shared by the parser, which fills it, and the callback, which reads it.
  const auto options = std::make_shared<CodecOptions>();
  CLI::App* command =
      bench.add_subcommand("codec", "Rate and error of encoding and decoding, on one core");
  command->add_option("--codec", options->codecs, "One of them; may be repeated (default: all)");
  command->add_option("--size", options->size, "Bytes of gradient (100m is beyond most caches)");
  command
      ->add_option("--distribution",
                   options->distribution,
                   "heavy (Student's t with 3 degrees of freedom), normal or zeros")
      ->check(CLI::IsMember({"heavy", "normal", "zeros"}));
  command->add_option("--dtype", options->dtype, "Of the gradient: float32, float16 or bfloat16")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}));
  command->add_option("--seconds", options->seconds, "For each codec; at least five rounds")
      ->check(CLI::Range(0.0, 3600.0));
  command->footer(
      "Examples:\n"
      "  stretto bench codec\n"
      "  stretto bench codec --codec int8 --codec sign:feedback=off --json\n"
      "  stretto bench codec --codec topk:0.1% --distribution zeros --size 1g\n"
      "encode and decode are gradient bytes by time, beside memcpy in the same rounds; share is\n"
      "encode by memcpy.  ratio counts the wires' bytes.  touched is what a step must read and "
      "write\n"
      "of an element: the gradient and what was left, what is left now, and the wire (what a "
      "cache\n"
      "reads before it writes is not counted); limit is the share of the rate at which memcpy "
      "would\n"
      "move as much.  max error is by the largest magnitude of an element's segment.\n"
      "Ends with 1 if an error is larger than the codec promises.");
  command->callback([options, &context] {
    const auto code = bench_codec(*options, context);
    if (code) {
      context.exit_code = *code;
    } else {
      fail_with(context, "bench codec", code.error());
    }
  });
}

}  // namespace stretto::cli
