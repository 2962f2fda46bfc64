// SPDX-License-Identifier: Apache-2.0
#include "terse/transport/rendezvous.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

// The file by which ranks that share nothing else find each other.

namespace {

using namespace std::chrono_literals;
using terse::Rendezvous;
using Bytes = std::array<std::byte, 128>;

/// A folder that goes away.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "terse-rendezvous-XXXXXX").string();
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name = "id") const { return path + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
};

Bytes some(int salt) {
  Bytes bytes;
  for (std::size_t b = 0; b < bytes.size(); ++b)
    bytes[b] = static_cast<std::byte>(b * 37 + static_cast<std::size_t>(salt));
  return bytes;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// What `act` throws as an E; another exception fails the test.
template <class E>
std::string thrown(const std::function<void()>& act) {
  try {
    act();
  } catch (const E& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("all ranks read what rank 0 has published, whoever comes first") {
  for (const bool early : {false, true}) {
    const Folder folder;
    const Bytes sent = some(early);
    std::atomic<int> right = 0;
    std::vector<std::thread> ranks;
    const auto publish = [&] { Rendezvous{folder.file(), "job.1", 0, 4}.publish(sent); };
    if (early) publish();
    for (int rank = 1; rank < 4; ++rank)
      ranks.emplace_back([&, rank] {
        Bytes got{};
        Rendezvous{folder.file(), "job.1", rank, 4}.fetch(got, 20s);
        right += got == sent;
      });
    if (!early) {
      std::this_thread::sleep_for(30ms);
      publish();
    }
    for (std::thread& rank : ranks) rank.join();
    CHECK(right == 3);
    CHECK(folder.files() == 1);
    struct stat status {};
    REQUIRE(::stat(folder.file().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    Rendezvous{folder.file(), "job.2", 0, 4}.withdraw();  // not its own
    CHECK(folder.files() == 1);
    Rendezvous{folder.file(), "job.1", 0, 4}.withdraw();
    CHECK(folder.files() == 0);
  }
}

TEST_CASE("a rank that waits in vain names rank 0 and what it found") {
  const Folder folder;
  Bytes got{};
  const Rendezvous mine{folder.file(), "job.2", 3, 4};
  try {
    mine.fetch(got, 50ms);
    FAIL("nothing was thrown");
  } catch (const terse::peer_error& failure) {
    CHECK(failure.culprit() == 0);
    CHECK(failure.rank() == 3);
    CHECK(std::string(failure.what()) ==
          "terse: rank 3: waited 50 ms for rank 0 to write '" + folder.file() + "': there is no such file");
  }
  Rendezvous{folder.file(), "job.1", 0, 4}.publish(some(1));
  CHECK(thrown<terse::peer_error>([&] { mine.fetch(got, 50ms); }) ==
        "terse: rank 3: waited 50 ms for rank 0 to write '" + folder.file() +
            "': the file there is run 'job.1''s, and this is run 'job.2'");
}

TEST_CASE("a file of an earlier run is waited past, and replaced by rank 0") {
  const Folder folder;
  Rendezvous{folder.file(), "job.1", 0, 2}.publish(some(1));
  Bytes got{};
  std::thread other([&] {
    Rendezvous{folder.file(), "job.2", 1, 2}.fetch(got, std::chrono::milliseconds::max());
  });
  std::this_thread::sleep_for(30ms);
  Rendezvous{folder.file(), "job.2", 0, 2}.publish(some(2));
  other.join();
  CHECK(got == some(2));
}

TEST_CASE("a run's name serves once") {
  const Folder folder;
  const Rendezvous mine{folder.file(), "job.1", 0, 2};
  mine.publish(some(1));
  const std::string before = text_of(folder.file());
  CHECK(thrown<terse::usage_error>([&] { mine.publish(some(2)); }) ==
        "terse: rank 0: '" + folder.file() +
            "' is already there for run 'job.1': a run's name serves one start only. Choose another, or "
            "remove the "
            "file if that start is over");
  CHECK(text_of(folder.file()) == before);
  CHECK(folder.files() == 1);
}

TEST_CASE("a file that is no rendezvous is neither replaced nor read nor removed") {
  const Folder folder;
  Rendezvous{folder.file(), "r", 0, 2}.publish(some(0));
  const std::string good = text_of(folder.file());
  const std::vector<std::string> texts{"",
                                       "my thesis\n",
                                       good + "more\n",
                                       good.substr(0, good.size() - 1),
                                       good.substr(0, 40),
                                       "x" + good,
                                       std::string(1000000, 'a')};
  for (const std::string& text : texts) {
    write(folder.file(), text);
    const std::string sentence =
        "'" + folder.file() +
        (text.substr(0, 17) == "terse rendezvous "
             ? "' is a rendezvous file that was cut off or has changed since it was written, or is one of "
               "another version of terse; it is left as it is. Remove it and start the job again"
             : "' is not a rendezvous file; it is left as it is");
    Bytes got{};
    CHECK(thrown<terse::usage_error>([&] {
            Rendezvous{folder.file(), "r", 0, 2}.publish(some(1));
          }) == "terse: rank 0: " + sentence);
    CHECK(thrown<terse::usage_error>([&] {
            Rendezvous{folder.file(), "r", 1, 2}.fetch(got, 20s);
          }) == "terse: rank 1: " + sentence);
    Rendezvous{folder.file(), "r", 0, 2}.withdraw();
    CHECK(text_of(folder.file()) == text);
  }
}

TEST_CASE("a file with another bit, or cut off anywhere, is never read") {
  const Folder folder;
  Rendezvous{folder.file(), "r", 0, 2}.publish(some(0));
  const std::string good = text_of(folder.file());
  Bytes got{};
  int read = 0;
  const auto try_to_read = [&](const std::string& text) {
    std::filesystem::remove(folder.file());  // some file systems wait for the disk where one is overwritten
    write(folder.file(), text);
    const std::string why = thrown<terse::usage_error>([&] {
      Rendezvous{folder.file(), "r", 1, 2}.fetch(got, 20s);
    });
    read += why.find("'" + folder.file() + "' is ") == std::string::npos ? 1 : 0;
  };
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string text = good;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    try_to_read(text);
  }
  for (std::size_t size = 0; size < good.size(); ++size) try_to_read(good.substr(0, size));
  // An id that is cut off and still ends as a file does.
  const std::size_t sum = good.find("\nsum ");
  for (const std::size_t size : {sum - 1, sum - 2, sum - 64})
    try_to_read(good.substr(0, size) + good.substr(sum));
  CHECK(read == 0);
  CHECK(got == Bytes{});
  write(folder.file(), good);
  Rendezvous{folder.file(), "r", 1, 2}.fetch(got, 20s);
  CHECK(got == some(0));
}

TEST_CASE("ranks that count differently, or bring other bytes, are told so at once") {
  const Folder folder;
  Rendezvous{folder.file(), "r", 0, 4}.publish(some(0));
  Bytes got{};
  CHECK(thrown<terse::mismatch_error>([&] {
          Rendezvous{folder.file(), "r", 1, 3}.fetch(got, 20s);
        }) == "terse: rank 1: rank 0 waits at '" + folder.file() + "' for 4 ranks, and this one counts 3");
  std::array<std::byte, 64> less{};
  CHECK(thrown<terse::mismatch_error>([&] {
          Rendezvous{folder.file(), "r", 1, 4}.fetch(less, 20s);
        }) ==
        "terse: rank 1: rank 0 has written 128 bytes to '" + folder.file() + "', and this rank reads 64");
}

TEST_CASE("what can't be written or read is said with its reason") {
  const Folder folder;
  Bytes got{};
  CHECK(thrown<terse::usage_error>([&] {
          Rendezvous{folder.path + "/no/id", "r", 0, 2}.publish(some(0));
        }) ==
        "terse: rank 0: can't write in the folder of '" + folder.path + "/no/id': No such file or directory");
  write(folder.file(), "");
  CHECK(thrown<terse::usage_error>([&] {
          Rendezvous{folder.file("id/id"), "r", 1, 2}.fetch(got, 20s);
        }) == "terse: rank 1: can't read '" + folder.file("id/id") + "': Not a directory");
  // A FIFO without a writer, too, which to open would take for ever.
  REQUIRE(::mkfifo(folder.file("fifo").c_str(), 0600) == 0);
  for (const std::string& path : {folder.path, folder.file("fifo")})
    CHECK(thrown<terse::usage_error>([&] {
            Rendezvous{path, "r", 1, 2}.fetch(got, 20s);
          }) == "terse: rank 1: '" + path + "' is not a regular file");
}

TEST_CASE("values that can't work are refused") {
  Bytes got{};
  const std::vector<Rendezvous> wrong{{"", "r", 0, 1},
                                      {"/tmp/x", "", 0, 1},
                                      {"/tmp/x", "two words", 0, 1},
                                      {"/tmp/x", "r", 2, 2},
                                      {"/tmp/x", "r", -1, 2},
                                      {"/tmp/x", "r", 0, 0},
                                      {"/tmp/x", std::string(101, 'r'), 0, 1}};
  for (const Rendezvous& place : wrong) {
    CHECK_THROWS_AS(place.publish(got), const terse::usage_error&);
    CHECK_THROWS_AS(place.fetch(got, 20s), const terse::usage_error&);
  }
}
