// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "../../tools/train/idx.hpp"
#include "../../tools/train/output.hpp"

namespace experiments {

std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const std::vector<std::string>& known) {
  Options o;
  o.data = train::default_data_directory;
  CLI::App app("Small trainings that show the purpose of each method.", "experiments");
  app.add_option("names", o.names, fmt::format("of experiments: {} [all]", fmt::join(known, ", ")))
      ->check(CLI::IsMember(known));
  app.add_option("--only", o.only, "only rows with this text in their name")->type_name("TEXT");
  app.add_option("--first-seed", o.first_seed, "[1]")->type_name("N");
  app.add_option("--seeds", o.seeds, "one after the other [3]")->type_name("N")->check(CLI::Range(1, 1000));
  app.add_option("--data", o.data, fmt::format("folder of Fashion-MNIST's IDX files [{}]", o.data))
      ->type_name("FOLDER");
  app.add_option("--csv", o.csv, "write each figure of each seed")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    train::print(stdout, app.help());
    return std::nullopt;
  } catch (const CLI::ParseError& fault) {
    std::string line = fault.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw input_error(line + "; see --help");
  }
  if (o.names.empty()) o.names = known;
  // Now: a typing error should not cost the runs.
  train::check_output("--csv", o.csv);
  return o;
}

}  // namespace experiments
