// SPDX-License-Identifier: Apache-2.0

// golden FILE: compares with the table. golden: writes it.

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>

#include "golden.hpp"

int main(int argc, char** argv) {
  std::vector<golden::Row> rows;
  golden::add_exact(rows);
  golden::add_one_bit(rows);
  golden::add_averaging(rows);
  golden::add_mixing(rows);
  golden::add_local(rows);
  std::map<std::string, std::string> found;
  for (const golden::Row& row : rows) {
    char figures[40];
    std::snprintf(figures, sizeof figures, "%016" PRIx64 " %016" PRIx64, row.parameters, row.packets);
    if (!found.emplace(row.name, figures).second) {
      std::fprintf(stderr, "golden: %s stands there twice\n", row.name.c_str());
      return 1;
    }
    if (argc < 2) std::printf("%s %s\n", figures, row.name.c_str());
  }
  if (argc < 2) return 0;

  std::ifstream table(argv[1]);
  int failed = table ? 0 : 1;
  for (std::string line; std::getline(table, line);) {
    const std::string figures = line.substr(0, 33), name = line.size() > 34 ? line.substr(34) : "";
    const auto row = found.find(name);
    if (row == found.end() || row->second != figures) {
      std::fprintf(stderr, "golden: %s: %s, was %s\n", name.c_str(),
                   row == found.end() ? "not there" : row->second.c_str(), figures.c_str());
      ++failed;
    }
    if (row != found.end()) found.erase(row);
  }
  for (const auto& [name, figures] : found) {
    std::fprintf(stderr, "golden: %s: not in the table\n", name.c_str());
    ++failed;
  }
  return failed == 0 ? 0 : 1;
}
