// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string_view>
#include <system_error>

namespace advise {

const char* const usage =
    R"(What a training step will take with each method, on the network between these ranks or on a given one.

  tools/advise --gradient-seconds S (--elements N | --segments LIST | --layout FILE) [...]
  mpirun -n 4 tools/advise ...                 between MPI processes; otherwise ranks are threads

  --gradient-seconds S   of one step's gradient, as it takes where all ranks compute theirs
  --elements N           parameters (1e9, too), as square matrices of up to 1024 x 1024 and a vector
  --segments LIST        name:ROWSxCOLUMNS,name:COUNT,... in the model's order
  --layout FILE          the same, one to a line; # begins a comment
  --given-network MS,MBIT  a latency and a bandwidth of each link, instead of measuring. Each rank has cores of its own then
  --ranks N              threads, without mpirun [2]
  --period N             steps between the means of local methods [8]
  --methods NAME,...     these alone [all]
  --rehearsal-elements N take the rehearsal's steps with about so many parameters, at most [4194304]
  --json                 one line of JSON instead of a table
)";

namespace {

template <class Number>
Number number(const std::string& option, std::string_view given, Number least, const char* wanted) {
  Number value{};
  const char* const end = given.data() + given.size();
  const std::from_chars_result result = std::from_chars(given.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end || !(value >= least) ||
      !std::isfinite(static_cast<double>(value)))
    throw input_error(option + ": '" + std::string(given) + "' is not " + wanted);
  return value;
}

terse::index_t number_of_parameters(const std::string& option, const std::string& given) {
  const char* const wanted = "a whole number of parameters, from 1 to 1e15";
  const auto value = number<double>(option, given, 1, wanted);
  if (value != std::floor(value) || value > 1e15)
    throw input_error(option + ": '" + given + "' is not " + wanted);
  return static_cast<terse::index_t>(value);
}

std::string trimmed(const std::string& text) {
  const char* const blanks = " \t\r";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

/// One more than there are separators, without blanks around them.
std::vector<std::string> parts(const std::string& text, char between) {
  std::vector<std::string> all;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find(between, begin)) != std::string::npos; begin = end + 1)
    all.push_back(trimmed(text.substr(begin, end - begin)));
  all.push_back(trimmed(text.substr(begin)));
  return all;
}

void add_segment(terse::Layout& layout, const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string name = trimmed(text.substr(0, colon));
  if (colon == std::string::npos || name.empty() || trimmed(text.substr(colon + 1)).empty())
    throw input_error(option + ": '" + text + "' is not a segment; write name:ROWSxCOLUMNS or name:COUNT");
  std::vector<terse::index_t> shape;
  for (const std::string& extent : parts(text.substr(colon + 1), 'x'))
    shape.push_back(
        number<terse::index_t>(option + ", segment '" + text + "'", extent, 1, "a dimension, 1 or more"));
  layout.add({name, shape});
}

terse::Layout from_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw input_error("--layout: can't read " + path);
  terse::Layout layout;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    line = trimmed(line);
    if (!line.empty()) add_segment(layout, path + ":" + std::to_string(number), line);
  }
  return layout;
}

terse::Layout of_matrices(terse::index_t elements) {
  const auto root = static_cast<terse::index_t>(std::sqrt(static_cast<double>(elements)));
  const terse::index_t side = std::clamp<terse::index_t>(root, 1, 1024);
  terse::Layout layout;
  for (terse::index_t k = 0; k < elements / (side * side); ++k)
    layout.add({"matrix" + std::to_string(k), {side, side}});
  if (const terse::index_t rest = elements % (side * side); rest > 0) layout.add({"vector", {rest}});
  return layout;
}

Options::Given network_of(const std::string& text) {
  const std::vector<std::string> figures = parts(text, ',');
  const std::string option = "--given-network";
  if (figures.size() != 2)
    throw input_error(option + ": '" + text + "' is not a latency in ms and a bandwidth in Mbit/s: 0.1,1000");
  const double latency = number<double>(option, figures[0], 0, "a latency in ms, 0 or more");
  const double megabits = number<double>(option, figures[1], 1e-6, "a bandwidth in Mbit/s, above 0");
  return {latency / 1e3, megabits * 1e6 / 8};
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  bool has_gradient = false;
  int layouts = 0;
  for (int k = 1; k < argc; ++k) {
    const std::string option = argv[k];
    if (option == "--help" || option == "-h") {
      options.help = true;
      return options;
    }
    if (option == "--json") {
      options.json = true;
      continue;
    }
    const auto is = [&](const char* name) { return option == name; };
    if (!is("--gradient-seconds") && !is("--elements") && !is("--segments") && !is("--layout") &&
        !is("--given-network") && !is("--ranks") && !is("--period") && !is("--methods") &&
        !is("--rehearsal-elements"))
      throw input_error("there is no option " + option + "; --help lists them");
    if (++k == argc) throw input_error(option + " needs a value");
    const std::string given = argv[k];
    if (is("--gradient-seconds")) {
      options.gradient = number<double>(option, given, 0, "a number of seconds, 0 or more");
      has_gradient = true;
    } else if (is("--elements")) {
      options.layout = of_matrices(number_of_parameters(option, given));
      ++layouts;
    } else if (is("--segments")) {
      for (const std::string& segment : parts(given, ',')) add_segment(options.layout, option, segment);
      ++layouts;
    } else if (is("--layout")) {
      options.layout = from_file(given);
      ++layouts;
    } else if (is("--given-network")) {
      options.network = network_of(given);
    } else if (is("--ranks")) {
      options.ranks = number<int>(option, given, 1, "a number of ranks, 1 or more");
    } else if (is("--period")) {
      options.period = number<int>(option, given, 1, "a number of steps, 1 or more");
    } else if (is("--methods")) {
      options.methods = parts(given, ',');
    } else {
      options.rehearsed = number_of_parameters(option, given);
    }
  }
  if (!has_gradient)
    throw input_error("--gradient-seconds is missing: the time of one step's gradient, without an optimizer");
  if (layouts != 1) throw input_error("give the layout once, by --elements, --segments or --layout");
  if (options.layout.size() == 0) throw input_error("the layout has no parameters");
  return options;
}

terse::Layout shrunk(const terse::Layout& layout, terse::index_t elements) {
  const double share = std::min(1.0, static_cast<double>(elements) / static_cast<double>(layout.size()));
  terse::Layout small;
  for (const terse::Segment& segment : layout.segments()) {
    std::vector<terse::index_t> shape = segment.shape;
    shape[0] = std::max<terse::index_t>(
        1, static_cast<terse::index_t>(std::ceil(static_cast<double>(shape[0]) * share)));
    small.add({segment.name, shape});
  }
  return small;
}

}  // namespace advise
