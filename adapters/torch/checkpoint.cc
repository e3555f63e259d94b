// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors.hpp"
#include "tensors.hpp"

#include "stretto/libtorch.hpp"

#include <cstring>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

namespace stretto::libtorch {
namespace {

using checkpoint::ElementType;

constexpr const char* kOptimizerName = "stretto.optimizer";

ElementType element_type_of(const std::string& name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Bool:
      return ElementType::kBool;
    case c10::ScalarType::Byte:
      return ElementType::kU8;
    case c10::ScalarType::Char:
      return ElementType::kI8;
    case c10::ScalarType::Short:
      return ElementType::kI16;
    case c10::ScalarType::Int:
      return ElementType::kI32;
    case c10::ScalarType::Long:
      return ElementType::kI64;
    case c10::ScalarType::Half:
      return ElementType::kF16;
    case c10::ScalarType::BFloat16:
      return ElementType::kBF16;
    case c10::ScalarType::Float:
      return ElementType::kF32;
    case c10::ScalarType::Double:
      return ElementType::kF64;
    default:
      refuse("tensor '" + name + "' has a type that a checkpoint cannot hold");
  }
}

/// Everything of a module that a checkpoint keeps: names and tensors, tied ones once per name.
struct State {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

State state_of(const torch::nn::Module& module) {
  State state;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) {
      state.names.push_back(name);
      state.tensors.push_back(tensor);
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  return state;
}

/// Hash of names, shapes and types, in order.
std::uint64_t plan_hash_of(const State& state) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    const auto type = to_string(element_type_of(state.names[i], state.tensors[i]));
    hash = hash_text(state.names[i], hash);
    hash = hash_text(std::string(type) + to_string(shape_of(state.tensors[i])), hash);
  }
  return hash;
}

std::string optimizer_archive(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

void load_optimizer(const std::string& path,
                    const std::string& bytes,
                    torch::optim::Optimizer& optimizer) {
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size());
    optimizer.load(archive);
  } catch (const c10::Error& error) {
    refuse("'" + path +
           "' holds the state of another optimizer: " + error.what_without_backtrace());
  }
}

}  // namespace

void save_checkpoint(const std::string& path,
                     const torch::nn::Module& module,
                     const torch::optim::Optimizer* optimizer,
                     const CheckpointInfo& info) {
  const State state = state_of(module);
  const ContiguousValues values(state.tensors);
  std::vector<checkpoint::TensorToWrite> tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensors.push_back({state.names[i],
                       element_type_of(state.names[i], state.tensors[i]),
                       shape_of(state.tensors[i]),
                       {values.memory()[i], values.bytes(i)}});
  }
  std::string archive;
  if (optimizer != nullptr) {
    archive = optimizer_archive(*optimizer);
    tensors.push_back({kOptimizerName,
                       ElementType::kU8,
                       {static_cast<std::int64_t>(archive.size())},
                       std::as_bytes(std::span(archive))});
  }
  checkpoint::Metadata metadata = info.texts;
  checkpoint::put_manifest(
      {.step = info.step, .world_size = info.world_size, .plan_hash = plan_hash_of(state)},
      metadata);
  throw_if_failed(checkpoint::write_safetensors(path, tensors, metadata));
}

CheckpointInfo load_checkpoint(const std::string& path,
                               torch::nn::Module& module,
                               torch::optim::Optimizer* optimizer) {
  const auto file = checkpoint::SafetensorsFile::open(path);
  throw_if_failed(file ? Status::ok() : file.error());
  const auto manifest = checkpoint::manifest_of(file->header().metadata, path);
  throw_if_failed(manifest ? Status::ok() : manifest.error());
  // First everything is looked for and read, then everything is taken over.
  const State state = state_of(module);
  std::vector<std::vector<std::byte>> read;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    const auto& tensor = state.tensors[i];
    const auto entry =
        file->find(state.names[i], element_type_of(state.names[i], tensor), shape_of(tensor));
    throw_if_failed(entry ? Status::ok() : entry.error());
    read.emplace_back(bytes_in(tensor));
    throw_if_failed(file->read(*entry, read.back()));
  }
  if (manifest->plan_hash != plan_hash_of(state)) {
    refuse("'" + path + "' holds more than this model has: the checkpoint is of another model");
  }
  std::string archive;
  if (optimizer != nullptr) {
    for (const auto& entry : file->header().tensors) {
      if (entry.name == kOptimizerName) {
        archive.resize(static_cast<std::size_t>(entry.end - entry.begin));
        throw_if_failed(file->read(entry, std::as_writable_bytes(std::span(archive))));
      }
    }
    if (archive.empty()) {
      refuse("'" + path + "' holds no optimizer state: it was saved without an optimizer");
    }
    load_optimizer(path, archive, *optimizer);
  }
  ContiguousValues values(state.tensors);
  for (std::size_t i = 0; i < read.size(); ++i) {
    std::memcpy(values.memory()[i], read[i].data(), read[i].size());
  }
  values.written();
  CheckpointInfo info{.step = manifest->step, .world_size = manifest->world_size, .texts = {}};
  for (const auto& [key, text] : file->header().metadata) {
    if (key.rfind("stretto.", 0) != 0) {
      info.texts[key] = text;
    }
  }
  return info;
}

std::uint64_t weight_hash(const torch::nn::Module& module) {
  std::uint64_t hash = 0;
  for (const auto& item : module.named_parameters()) {
    const ContiguousValues value({item.value()});
    hash = hash_text(item.key(), hash);
    hash = hash_bytes({value.constant_memory()[0], value.bytes(0)}, hash);
  }
  return hash;
}

}  // namespace stretto::libtorch
