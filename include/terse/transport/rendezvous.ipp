// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

#include "terse/core/separate.hpp"
#include "terse/transport/rendezvous.hpp"

namespace terse {

TERSE_CORE void Rendezvous::check() const {
  if (path.empty()) throw usage_error("a rendezvous needs a path", rank);
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  };
  if (run.empty() || run.size() > 100 || !std::all_of(run.begin(), run.end(), allowed))
    throw usage_error(
        "a rendezvous needs a run of 1 to 100 letters, digits and . _ : - that no other start "
        "of the job has, such as the job's id with its restart count; this is '" +
            run + "'",
        rank);
  if (size < 1 || rank < 0 || rank >= size)
    throw usage_error("a rendezvous of " + std::to_string(size) + " ranks has no rank " +
                      std::to_string(rank));
}

TERSE_CORE void Rendezvous::publish(std::span<const std::byte> bytes) const {
  check();
  if (const std::optional<std::string> there = read()) {
    const Text text = parse(*there);
    if (text.run == run)
      throw usage_error(
          "'" + path + "' is already there for run '" + run +
              "': a run's name serves one start only. Choose another, or remove the file if that "
              "start is over",
          rank);
  }
  std::string name = path + ".XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);  // mode 0600
  if (file < 0)
    throw usage_error("can't write in the folder of '" + path + "': " + std::strerror(errno), rank);
  const std::string text = compose(bytes);
  const bool written = write(file, text);
  // A network file system may report a full disk only at this point.
  if (::close(file) != 0 || !written || std::rename(name.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(name.c_str());
    throw usage_error("can't write '" + path + "': " + std::strerror(reason), rank);
  }
}

TERSE_CORE void Rendezvous::fetch(std::span<std::byte> bytes, Deadline deadline) const {
  check();
  const auto until = detail::time_after(detail::positive(deadline, rank));
  std::chrono::milliseconds pause{5};
  for (;;) {
    std::string found = "there is no such file";
    if (const std::optional<std::string> there = read()) {
      const Text text = parse(*there);
      if (text.run == run) return take(text, bytes);
      found = "the file there is run '" + std::string(text.run) + "''s, and this is run '" + run + "'";
    }
    if (std::chrono::steady_clock::now() > until)
      throw peer_error(
          "waited " + std::to_string(deadline.count()) + " ms for rank 0 to write '" + path + "': " + found,
          0, rank);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
}

TERSE_CORE void Rendezvous::withdraw() const noexcept {
  try {
    if (const std::optional<std::string> there = read())
      if (parse(*there).run == run) ::unlink(path.c_str());
  } catch (const std::exception&) {  // a leftover file does no harm: its run is over
  }
}

TERSE_CORE std::string Rendezvous::hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return text;
}

TERSE_CORE std::string Rendezvous::sum_of(std::string_view lines) {
  const auto bytes = std::as_bytes(std::span(lines));
  const std::uint64_t hash = detail::hash_bytes(bytes.data(), bytes.size());
  return "sum " + hexadecimal(std::as_bytes(std::span(&hash, 1))) + "\n";
}

TERSE_CORE std::string Rendezvous::compose(std::span<const std::byte> bytes) const {
  const std::string lines = std::string(title) + "\nrun " + run + "\nsize " + std::to_string(size) +
                            "\nbytes " + hexadecimal(bytes) + "\n";
  return lines + sum_of(lines);
}

TERSE_CORE Rendezvous::Text Rendezvous::parse(const std::string_view whole) const {
  std::string_view text = whole;
  const auto line = [&](std::string_view key) -> std::optional<std::string_view> {
    const std::size_t end = text.find('\n');
    if (end == text.npos || text.substr(0, key.size()) != key) return std::nullopt;
    const std::string_view value = text.substr(key.size(), end - key.size());
    text.remove_prefix(end + 1);
    return value;
  };
  const auto head = line(title);
  const auto its_run = head ? line("run ") : std::nullopt;
  const auto its_size = its_run ? line("size ") : std::nullopt;
  const auto its_bytes = its_size ? line("bytes ") : std::nullopt;
  if (its_bytes && head->empty() && text == sum_of(whole.substr(0, whole.size() - text.size())))
    return {*its_run, *its_size, *its_bytes};
  throw usage_error(
      "'" + path + "' is " +
          (whole.substr(0, family.size()) == family
               ? "a rendezvous file that was cut off or has changed since it was written, or is one of "
                 "another version of terse; it is left as it is. Remove it and start the job again"
               : "not a rendezvous file; it is left as it is"),
      rank);
}

TERSE_CORE void Rendezvous::take(const Text& text, std::span<std::byte> bytes) const {
  if (text.size != std::to_string(size))
    throw mismatch_error("rank 0 waits at '" + path + "' for " + std::string(text.size) +
                             " ranks, and this one counts " + std::to_string(size),
                         rank);
  if (text.bytes.size() != 2 * bytes.size())
    throw mismatch_error("rank 0 has written " + std::to_string(text.bytes.size() / 2) + " bytes to '" +
                             path + "', and this rank reads " + std::to_string(bytes.size()),
                         rank);
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t b = 0; b < bytes.size(); ++b)
    bytes[b] = static_cast<std::byte>(digit(text.bytes[2 * b]) * 16 + digit(text.bytes[2 * b + 1]));
}

TERSE_CORE std::optional<std::string> Rendezvous::read() const {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    // A network file system may still know the replaced file.
    if (errno == ENOENT || errno == ESTALE) return std::nullopt;
    throw usage_error("can't read '" + path + "': " + std::strerror(errno), rank);
  }
  struct stat kind {};
  if (::fstat(file, &kind) != 0 || !S_ISREG(kind.st_mode)) {
    ::close(file);
    throw usage_error("'" + path + "' is not a regular file", rank);
  }
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t count = ::read(file, part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    const int reason = errno;
    if (count <= 0 || text.size() > largest) {
      ::close(file);
      if (count >= 0) return text;
      if (reason == ESTALE) return std::nullopt;
      throw usage_error("can't read '" + path + "': " + std::strerror(reason), rank);
    }
    text.append(part, static_cast<std::size_t>(count));
  }
}

TERSE_CORE bool Rendezvous::write(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace terse
