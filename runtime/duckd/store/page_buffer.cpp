#include "page_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;

}  // namespace

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

std::optional<PageBuffer> PageBuffer::anonymous(std::size_t size) {
  if (size == 0) return PageBuffer{};
  const bool is_large = size > kHuge / 2;
  const std::size_t mapped = is_large ? (size + kHuge - 1) / kHuge * kHuge : size, spare = is_large ? kHuge : 0;
  void* const at = mmap(nullptr, mapped + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return std::nullopt;
  auto* const begin = static_cast<std::byte*>(at);
  auto* data = begin;
  if (is_large) {
    const std::size_t before = (kHuge - reinterpret_cast<std::uintptr_t>(begin) % kHuge) % kHuge;
    data += before;
    if (before > 0) munmap(begin, before);
    if (before < spare) munmap(data + mapped, spare - before);
  }
  madvise(data, mapped, MADV_HUGEPAGE);  // a hint; refused by kernels without it
  return PageBuffer(data, size, mapped);
}

std::optional<PageBuffer> PageBuffer::map_file(const std::string& path, std::string& error) {
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    error = std::strerror(errno);
    return std::nullopt;
  }
  struct stat info {};
  void* data = MAP_FAILED;
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    data = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_SHARED, file, 0);
  }
  error = data == MAP_FAILED ? "it is no regular file with content" : "";
  close(file);
  if (data == MAP_FAILED) return std::nullopt;
  return PageBuffer(static_cast<std::byte*>(data), static_cast<std::size_t>(info.st_size),
                    static_cast<std::size_t>(info.st_size));
}

bool PageBuffer::make_writable(std::string& error) noexcept {
  if (mprotect(data_, size_, PROT_READ | PROT_WRITE) == 0) return true;
  error = std::strerror(errno);
  return false;
}

std::optional<PageBuffer> PageBuffer::create_file(const std::string& path, std::size_t size, std::string& error) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) {
    error = std::strerror(errno);
    return std::nullopt;
  }
  void* data = MAP_FAILED;
  if (const int failure = posix_fallocate(file, 0, static_cast<off_t>(size)); failure != 0) {
    error = std::strerror(failure);
  } else {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = std::strerror(errno);
  }
  close(file);
  if (data == MAP_FAILED) {
    unlink(path.c_str());
    return std::nullopt;
  }
  return PageBuffer(static_cast<std::byte*>(data), size, size);
}

}  // namespace duckfleet::duckd
