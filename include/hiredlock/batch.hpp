// Many extends and releases with one server in one write, each with an answer of its own, and one WAIT for all that ask for it.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include <hiredlock/compare_and.hpp>
#include <hiredlock/fifo.hpp>

namespace hiredlock::detail {

class Batch final : public Exchange {
public:
    struct Item {
        CompareAnd::Do what;
        Claim claim;  ///< its views outlive the Batch
    };
    /// `answered(i, answer, error, words)` is called once for each item that is answered. `select` tells at the moment of sending whether an item is still wanted.
    using Answered = std::function<void(std::size_t, Answer, std::error_code, const std::string&)>;

    Batch(std::vector<Item> items, Dialect& dialect, Clock::duration time, std::function<bool(std::size_t)> select, Answered answered)
        : items_(std::move(items)), time_(time), select_(std::move(select)), answered_(std::move(answered)) {
        for (Item& item : items_) {
            unacknowledged_.push_back(item.claim.acknowledged);
            item.claim.acknowledged = {};
            exchanges_.emplace_back(item.what, item.claim, dialect);
        }
    }

    void start(CommandSink& sink) override {
        expected_.clear();
        waiting_.clear();
        for (std::size_t i = 0; i < items_.size(); ++i) {
            if (!select_(i)) continue;
            Tagged tagged{sink, expected_, i};
            exchanges_[i].start(tagged);
        }
        if (expected_.empty()) sink.command({"PING"});  // nothing is wanted any more; an exchange has at least one answer
    }

    bool take(const Reply& reply, CommandSink& sink) override {
        if (expected_.empty()) return waiting_.empty() ? decide(Answer::yes) : take_acknowledgement(reply, sink);
        const std::size_t i = expected_.pop();
        CompareAnd& exchange = exchanges_[i];
        Tagged tagged{sink, expected_, i};
        if (exchange.take(reply, tagged)) {
            if (exchange.answer == Answer::yes && unacknowledged_[i].is_asked())
                waiting_.push_back(i);
            else
                answered_(i, exchange.answer, exchange.error, exchange.words);
        }
        if (!expected_.empty()) return false;
        return waiting_.empty() ? decide(Answer::yes) : ask_acknowledgement(sink);
    }

    /// An item that was answered must not be answered again.
    bool is_repeatable() const noexcept override { return false; }

    Clock::duration time_for_answers(Clock::duration command_timeout) const noexcept override {
        Clock::duration extra{};
        for (const Acknowledgement& asked : unacknowledged_) extra = std::max<Clock::duration>(extra, asked.timeout);
        return std::min(command_timeout, time_) + extra;
    }

private:
    /// Notes for which item each command is.
    struct Tagged final : CommandSink {
        Tagged(CommandSink& to, Fifo<std::size_t>& notes, std::size_t i) : sink(to), expected(notes), item(i) {}
        void command(std::initializer_list<std::string_view> arguments) override {
            sink.command(arguments);
            expected.push(item);
        }
        CommandSink& sink;
        Fifo<std::size_t>& expected;
        std::size_t item;
    };

    /// WAIT and WAITAOF speak of all that this connection has written, so one of a kind serves all items of that kind.
    bool ask_acknowledgement(CommandSink& sink) {
        asked_ = {.on_disk = unacknowledged_[waiting_.front()].on_disk};
        for (const std::size_t i : waiting_) {
            const Acknowledgement& one = unacknowledged_[i];
            if (one.on_disk != asked_.on_disk) continue;
            asked_.local = std::max(asked_.local, one.local);
            asked_.replicas = std::max(asked_.replicas, one.replicas);
            asked_.timeout = std::max(asked_.timeout, one.timeout);
        }
        write_wait(sink, asked_);
        return false;
    }

    bool take_acknowledgement(const Reply& reply, CommandSink& sink) {
        std::vector<std::size_t> others;
        for (const std::size_t i : waiting_) {
            if (unacknowledged_[i].on_disk != asked_.on_disk) {
                others.push_back(i);
                continue;
            }
            std::string text;
            const std::error_code problem = acknowledged(reply, unacknowledged_[i], text);
            answered_(i, problem ? Answer::failed : Answer::yes, problem, text);
        }
        waiting_ = std::move(others);
        return waiting_.empty() ? decide(Answer::yes) : ask_acknowledgement(sink);
    }

    std::vector<Item> items_;
    std::vector<Acknowledgement> unacknowledged_;
    std::deque<CompareAnd> exchanges_;
    Clock::duration time_;
    std::function<bool(std::size_t)> select_;
    Answered answered_;
    Fifo<std::size_t> expected_;  // which item each answer that is still out is for
    std::vector<std::size_t> waiting_;  // done by the server, not acknowledged yet
    Acknowledgement asked_;
};

}  // namespace hiredlock::detail
