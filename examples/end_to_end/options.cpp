// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

namespace end_to_end {
namespace {

constexpr const char* help =
    "usage: end_to_end [options]\n"
    "       mpirun -n 8 end_to_end --transport mpi [options]\n"
    "\n"
    "Trains a small network on pipelines of 4 stages and 2 replicas (over MPI as many as there are\n"
    "processes for), with every message compressed, and compares it with exact messages.\n"
    "\n"
    "  --transport threads|mpi   [threads]\n"
    "  --examples N              of all replicas, a multiple of 128 for each, up to 1000000 [4096]\n"
    "  --epochs N                2 to 1000 [6]\n"
    "  --timed-steps N           steps of each method over the modelled links, of which\n"
    "                            the fastest counts, 0 to 1000 [3]\n"
    "  --rate MBIT               of each rank's link, each way, in Mbit/s [0.8]\n"
    "  --pass MS                 of a micro-batch's forward pass; a backward pass takes two [4]\n"
    "  --bar SHARE               of the modelled gain that must be measured with 8 bits [0.93]\n"
    "  --seed N                  [1]\n"
    "  -h, --help                print this and exit\n";

/// `wanted` says what `allowed` asks for.
template <class Number, class Allowed>
Number number(const std::string& option, const char* given, const char* wanted, Allowed allowed) {
  Number value{};
  const char* const end = given + std::strlen(given);
  const std::from_chars_result result = std::from_chars(given, end, value);
  if (result.ec != std::errc{} || result.ptr != end || !allowed(value))
    throw input_error(option + ": '" + given + "' is not " + wanted);
  return value;
}
std::int64_t count(const std::string& option, const char* given, std::int64_t least, std::int64_t most) {
  const std::string wanted = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  return number<std::int64_t>(option, given, wanted.c_str(),
                              [&](std::int64_t value) { return value >= least && value <= most; });
}
double positive(const std::string& option, const char* given) {
  return number<double>(option, given, "a number above 0, up to a million",
                        [](double value) { return value > 0 && value <= 1e6; });
}

void set(Options& options, const std::string& option, const char* given) {
  if (option == "--transport") {
    if (std::strcmp(given, "threads") != 0 && std::strcmp(given, "mpi") != 0)
      throw input_error(option + ": '" + given + "' is not one of threads, mpi");
    options.transport = std::strcmp(given, "mpi") == 0 ? Over::mpi : Over::threads;
  } else if (option == "--examples") {
    options.examples = count(option, given, 128, 1'000'000);
  } else if (option == "--epochs") {
    options.epochs = count(option, given, 2, 1000);
  } else if (option == "--timed-steps") {
    options.timed_steps = count(option, given, 0, 1000);
  } else if (option == "--rate") {
    options.rate = positive(option, given);
  } else if (option == "--pass") {
    options.pass = positive(option, given);
  } else if (option == "--bar") {
    options.bar = positive(option, given);
  } else if (option == "--seed") {
    options.seed = number<std::uint64_t>(option, given, "a whole number from 0 to 18446744073709551615",
                                         [](std::uint64_t) { return true; });
  } else {
    throw input_error("there is no option '" + option + "'; --help lists them");
  }
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, bool prints) {
  Options options;
  for (int k = 1; k < argc; ++k) {
    std::string option = argv[k];
    if (option == "-h" || option == "--help") {
      if (prints) std::fputs(help, stdout);
      return std::nullopt;
    }
    const char* value = nullptr;
    if (const std::size_t equals = option.find('='); equals != std::string::npos) {
      value = argv[k] + equals + 1;
      option.resize(equals);
    } else if (k + 1 < argc) {
      value = argv[k + 1];
      ++k;
    }
    set(options, option, value == nullptr ? "" : value);
  }
  return options;
}

}  // namespace end_to_end
