// Prints, beneath Google Benchmark's own table, how each median compares with that of a bare hiredis loop in the same run. Machines are noisy and the
// ratio within a run is what can be judged; where two bare loops do not agree, nothing can.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// A console reporter that keeps the median of each benchmark, in the benchmark's own unit.
class Ratios : public benchmark::ConsoleReporter {
public:
    struct Limit {
        std::string name;
        double most;
    };

    /// `bare` and `bare_again` are the names of two runs of one bare loop; `limits` say what is good.
    Ratios(std::string bare, std::string bare_again, std::vector<Limit> limits)
        : ConsoleReporter(OO_Tabular), bare_(std::move(bare)), bare_again_(std::move(bare_again)), limits_(std::move(limits)) {}

    void ReportRuns(const std::vector<Run>& runs) override {
        for (const Run& run : runs)
            if (run.aggregate_name == "median") medians_[run.run_name.function_name] = run.GetAdjustedRealTime();
        ConsoleReporter::ReportRuns(runs);
    }

    void Finalize() override {
        const double first = median(bare_), again = median(bare_again_);
        if (first == 0 || again == 0) return;
        const double apart = std::abs(first - again) / std::min(first, again);
        std::printf("\ntwo bare loops differ by %.1f %%%s\n", 100 * apart, apart > 0.02 ? ": too much to judge by, run it again on a quiet machine" : "");
        for (const Limit& limit : limits_)
            std::printf("%-24s %.3f x the bare loop (good: at most %.2f)\n", limit.name.c_str(), median(limit.name) / ((first + again) / 2), limit.most);
    }

private:
    double median(const std::string& name) const {
        const auto at = medians_.find(name);
        return at == medians_.end() ? 0 : at->second;
    }

    std::string bare_, bare_again_;
    std::vector<Limit> limits_;
    std::map<std::string, double> medians_;
};

}  // namespace bench
