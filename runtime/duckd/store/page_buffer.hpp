// Memory straight from the kernel: page-aligned, given back at once, touched only where it is used.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace duckfleet::duckd {

class PageBuffer {
 public:
  PageBuffer() noexcept = default;
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();

  // Zeroed memory, in huge pages where the kernel has them: what is larger than half of one begins with one and ends with
  // one, for a page walk every 4 KB keeps a core from reading as fast as it could. Nothing when there is no address space
  // or memory for it.
  static std::optional<PageBuffer> anonymous(std::size_t size);

  // An existing file, not to be written to until `make_writable`; a new file of `size` bytes whose blocks are reserved, so
  // that a full file system is an error here and not a SIGBUS later. `error` says what went wrong.
  static std::optional<PageBuffer> map_file(const std::string& path, std::string& error);
  static std::optional<PageBuffer> create_file(const std::string& path, std::size_t size, std::string& error);

  bool make_writable(std::string& error) noexcept;

  std::span<std::byte> bytes() noexcept { return {data_, size_}; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::size_t size() const noexcept { return size_; }

 private:
  PageBuffer(std::byte* data, std::size_t size, std::size_t mapped) noexcept : data_(data), size_(size), mapped_(mapped) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0, mapped_ = 0;
};

}  // namespace duckfleet::duckd
