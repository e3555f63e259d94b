// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/shared/mapping.hpp"

#include "stretto/spi/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stretto::exchange {

/// The arenas of this rank that others map, and the number by which each is known to them.
///
/// Threading: thread-compatible; a buffer may be let go on any thread.
class Arenas {
 public:
  /// Where memory lies for the others; `data` is null if they do not map it.
  struct Place {
    std::byte* data = nullptr;
    std::uint32_t file = 0;  ///< from 1 on, in the order of handing over
    std::uint64_t offset = 0;
  };

  /// Makes an arena.  It has a number once take_new has named it and it was handed over.
  Result<std::unique_ptr<spi::Buffer>> make(std::size_t bytes) {
    STRETTO_TRY_ASSIGN(Mapping made, Mapping::create(bytes, Mapping::Touch::kNow));
    auto memory = std::make_shared<const Mapping>(std::move(made));
    arenas_.push_back({memory, memory->data(), memory->size(), 0});
    return std::make_unique<Memory>(std::move(memory));
  }

  /// Numbers the arenas that are new.  Hand them over, in this order.
  std::vector<std::shared_ptr<const Mapping>> take_new() {
    std::vector<std::shared_ptr<const Mapping>> fresh;
    for (Arena& arena : arenas_) {
      if (auto memory = arena.memory.lock(); memory != nullptr && arena.file == 0) {
        arena.file = next_file_++;
        fresh.push_back(std::move(memory));
      }
    }
    return fresh;
  }

  Place place_of(const std::byte* data, std::size_t bytes) const noexcept {
    for (const Arena& arena : arenas_) {
      if (arena.file != 0 && data >= arena.begin && data + bytes <= arena.begin + arena.size &&
          !arena.memory.expired()) {
        const auto offset = static_cast<std::size_t>(data - arena.begin);
        return {arena.begin + offset, arena.file, offset};
      }
    }
    return {};
  }

 private:
  /// The user's end of an arena; the list keeps a weak pointer, to know when it was let go.
  class Memory final : public spi::Buffer {
   public:
    explicit Memory(std::shared_ptr<const Mapping> memory) : memory_(std::move(memory)) {}
    std::byte* data() const noexcept override { return memory_->data(); }
    std::size_t size() const noexcept override { return memory_->size(); }

   private:
    std::shared_ptr<const Mapping> memory_;
  };
  struct Arena {
    std::weak_ptr<const Mapping> memory;
    std::byte* begin = nullptr;
    std::size_t size = 0;
    std::uint32_t file = 0;  ///< 0: not handed over yet
  };

  std::vector<Arena> arenas_;
  std::uint32_t next_file_ = 1;
};

}  // namespace stretto::exchange
