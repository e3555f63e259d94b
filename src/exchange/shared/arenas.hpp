// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/shared/mapping.hpp"

#include "stretto/spi/device.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
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

  /// What the others do not know yet.
  struct News {
    std::vector<std::shared_ptr<const Mapping>> fresh;
    std::vector<std::uint32_t> gone;  ///< numbers of arenas that were let go

    std::vector<const Mapping*> to_hand_over() const {
      std::vector<const Mapping*> list;
      for (const auto& memory : fresh) {
        list.push_back(memory.get());
      }
      return list;
    }
  };

  /// Makes an arena.  It has a number once it was handed over.
  Result<std::unique_ptr<spi::Buffer>> make(std::size_t bytes) {
    STRETTO_TRY_ASSIGN(Mapping made, Mapping::create(bytes, Mapping::Touch::kNow));
    auto memory = std::make_shared<const Mapping>(std::move(made));
    arenas_.push_back({memory, memory->data(), memory->size(), 0});
    return std::make_unique<Memory>(std::move(memory));
  }

  News news() const {
    News news;
    for (const Arena& arena : arenas_) {
      auto memory = arena.memory.lock();
      if (memory == nullptr && arena.file != 0) {
        news.gone.push_back(arena.file);
      } else if (memory != nullptr && arena.file == 0) {
        news.fresh.push_back(std::move(memory));
      }
    }
    return news;
  }

  /// Numbers what was handed over, in that order, and forgets what is gone.  Only once all ranks
  /// have the news: an arena that some do not map has no number, or the numbers would differ.
  void told(const News& news) {
    for (const auto& memory : news.fresh) {
      const auto found = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& arena) {
        return arena.memory.lock() == memory;
      });
      found->file = next_file_++;
    }
    std::erase_if(arenas_, [&](const Arena& arena) {
      const bool known =
          std::find(news.gone.begin(), news.gone.end(), arena.file) != news.gone.end();
      return known || (arena.file == 0 && arena.memory.expired());
    });
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

/// The arenas of another rank, as they are mapped here.
///
/// Threading: thread-compatible.
class PeerArenas {
 public:
  /// Takes what it has handed over, and unmaps what it has let go: then no collective of which it
  /// was a part is under way, so nobody reads or writes there any more.
  void take(std::vector<Mapping> fresh, std::span<const std::uint32_t> gone) {
    std::move(fresh.begin(), fresh.end(), std::back_inserter(files_));
    for (const std::uint32_t file : gone) {
      if (file > 0 && file <= files_.size()) {
        files_[file - 1] = Mapping();  // its number is not given away again
      }
    }
  }

  /// Null for memory that is not mapped here.
  std::byte* at(std::uint32_t file, std::uint64_t offset, std::size_t bytes) const noexcept {
    if (file == 0 || file > files_.size()) {
      return nullptr;
    }
    return files_[file - 1].at(offset, bytes);
  }

 private:
  std::vector<Mapping> files_;
};

}  // namespace stretto::exchange
