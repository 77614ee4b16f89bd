// One question put to N servers at once, over one connection to each, from one thread; their votes decide it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/caretaker.hpp>
#include <hiredlock/quorum.hpp>
#include <hiredlock/session.hpp>

namespace hiredlock::detail {

enum class Question { ping, acquire, extend, release, unawaited_release };

/// One question to all servers. It lives on until the last of them has answered, which may be after the caller has gone.
struct Round {
    /// The servers in `lacking` (empty: none) certainly do not have the token; they are not asked, and count as a no.
    Round(Question question, const Claim& asked, std::vector<bool> those_lacking, Caretaker& mender)
        : what(question),
          key(asked.key),
          token(asked.token),
          stale(asked.stale),
          claim{key, token, asked.ttl, stale, {}, asked.acknowledged},
          lacking(std::move(those_lacking)),
          caretaker(mender) {}
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;

    /// A server that did not say that it has released, however late that turns out, may keep the token.
    ~Round() {
        if (what != Question::release && what != Question::unawaited_release) return;
        bool is_owed = false;
        for (std::size_t i = 0; i < exchanges.size(); ++i) is_owed = is_owed || error(i) || (exchanges[i] == nullptr && !lacks(i));
        if (is_owed) caretaker.add_orphan(claim);
    }

    bool lacks(std::size_t i) const { return !lacking.empty() && lacking[i]; }
    bool is_out(std::size_t i) const { return exchanges[i] != nullptr && !exchanges[i]->ended; }
    /// How server i answered; failed where it was not asked.
    Answer answer(std::size_t i) const {
        if (exchanges[i] == nullptr) return lacks(i) ? Answer::no : Answer::failed;
        return exchanges[i]->ended->answer;
    }
    /// Why it failed; {} where it did not, or was not asked.
    std::error_code error(std::size_t i) const { return exchanges[i] != nullptr && exchanges[i]->ended ? exchanges[i]->ended->error : std::error_code{}; }

    Votes votes() const {
        Votes votes{.nodes = exchanges.size()};
        for (std::size_t i = 0; i < exchanges.size(); ++i) {
            if (is_out(i)) continue;
            const Answer said = answer(i);
            ++(said == Answer::yes ? votes.yes : said == Answer::no ? votes.no : votes.failed);
        }
        return votes;
    }

    /// The servers that certainly did not do it; empty where all may have.
    std::vector<bool> without() const {
        return those([this](std::size_t i) { return !is_out(i) && (answer(i) == Answer::no || answer(i) == Answer::failed); });
    }
    /// Those that may do it later; empty where all have answered.
    std::vector<bool> late() const {
        return those([this](std::size_t i) { return is_out(i); });
    }
    template <class Is>
    std::vector<bool> those(Is is) const {
        std::vector<bool> servers;
        for (std::size_t i = 0; i < exchanges.size(); ++i) {
            if (!is(i)) continue;
            servers.resize(exchanges.size());
            servers[i] = true;
        }
        return servers;
    }

    const Question what;
    const std::string key, token, stale;
    const Claim claim;
    const std::vector<bool> lacking;
    Caretaker& caretaker;
    const Clock::time_point sent = Clock::now();
    std::vector<std::unique_ptr<Exchange>> exchanges;  // by server; null: not asked
};

/// One connection to each of the servers, and questions put to all of them. One thread at a time.
class Assembly {
public:
    Assembly(const std::vector<Endpoint>& endpoints, Caretaker& caretaker) : caretaker_(&caretaker), trusted_(endpoints.size(), true) {
        for (const Endpoint& endpoint : endpoints) sessions_.emplace_back(endpoint).identify();
    }

    /// Puts a question to all servers, until the votes decide it (or a release that nobody awaits is sent), or the patience ends.
    std::shared_ptr<const Round> ask(Question what, const Claim& claim, const Patience& patience, std::vector<bool> lacking = {}) {
        auto round = begin(what, Session::within(claim, patience), std::move(lacking));
        for (Patience rest = patience; !is_decided(*round) && !rest.stop.stop_requested() && Clock::now() < rest.until; wait(rest)) {
            // A majority that is divided over a lock does not keep its votes from others for longer than an answer should take that might decide.
            if (what == Question::acquire && round->votes().is_divided()) rest.until = std::min(patience.until, hope(*round));
        }
        welcome_late_ones(*round, patience);
        return round;
    }

    /// What the votes mean to the caller.
    Outcome verdict(const Round& round) const {
        if (const Session* one = same_server())
            return {.error = Errc::invalid_argument,
                    .detail = one->name() + " is the same server as another of them under another name; each must be independent of the others"};
        Votes votes = round.votes();
        if (votes.is_granted() || is_sent(round)) return {.answer = Answer::yes, .sent = round.sent};
        if (!votes.is_decided()) votes.failed += votes.pending();  // out of time
        const bool is_divided = round.what == Question::acquire && votes.yes > 0 && votes.no > 0;
        if (votes.is_refused() || (round.what == Question::acquire && votes.is_contended()))
            return {.answer = Answer::no, .sent = round.sent, .divided = is_divided};
        Outcome outcome{.answer = Answer::unknown, .error = Errc::no_quorum, .divided = is_divided};
        outcome.detail = std::to_string(votes.yes) + " of " + std::to_string(votes.nodes) + " servers said yes";
        std::size_t broken = 0;
        std::size_t cut_off = 0;
        std::error_code lasting;
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            outcome.detail += "; " + said(round, i);
            const std::error_code error = round.error(i);
            if (error == Errc::unknown_outcome) ++cut_off;
            if (!error || is_transient(error)) continue;
            if (broken++ == 0) lasting = error;
        }
        // Where connections broke under the question that would have made it a majority, asking again at once may well succeed.
        if (cut_off > 0 && votes.yes + cut_off >= votes.majority()) outcome.error = Errc::unknown_outcome;
        // Where so many fail for good that no majority can come, that is what has to be mended.
        if (votes.nodes - broken < votes.majority()) outcome.error = lasting;
        return outcome;
    }

    /// After an acquire that was not granted: who said yes, or may yet, lets go again. On the same connection, so that it comes after the SET.
    void take_back(const Round& round) {
        std::vector<bool> others(sessions_.size());
        bool is_unknown = false;
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            others[i] = !round.is_out(i) && round.answer(i) != Answer::yes;
            is_unknown = is_unknown || (others[i] && round.answer(i) == Answer::unknown);
        }
        if (is_unknown) caretaker_->add_orphan(round.claim);
        if (std::find(others.begin(), others.end(), false) != others.end()) begin(Question::unawaited_release, round.claim, std::move(others));
    }

    /// The first server's. Waits for it a little, though nothing depended on it, if it may be expected.
    Answer answer_of_first(const Round& round, const Patience& patience) {
        const auto until = std::min(grace(round, patience), hope(round, 0));
        while (round.is_out(0) && !patience.stop.stop_requested() && Clock::now() < until) wait({until, patience.stop});
        return round.is_out(0) ? Answer::unknown : round.answer(0);
    }

    /// To be released on the servers that are not in `others`, over the connections of this Assembly and so behind the acquire, by whoever uses it next.
    /// Any thread.
    void leave_release(const Claim& claim, std::vector<bool> others) {
        const std::scoped_lock lock{*left_mutex_};
        left_.push_back({std::string{claim.key}, std::string{claim.token}, claim.ttl, std::move(others)});
    }
    /// Releases what others have left.
    void release_left() {
        std::vector<Left> left;
        {
            const std::scoped_lock lock{*left_mutex_};
            left.swap(left_);
        }
        for (Left& one : left) begin(Question::unawaited_release, {one.key, one.token, one.ttl}, std::move(one.others));
    }

    /// Takes answers that came, and goes on with what was begun, after their caller had gone. True where more is to come.
    bool tend() {
        release_left();
        for (Session& session : sessions_)
            if (session.is_busy()) session.step();
        return is_busy();
    }
    bool is_busy() const noexcept {
        return std::any_of(sessions_.begin(), sessions_.end(), [](const Session& session) { return session.is_busy(); });
    }

    void close_inherited() noexcept {
        for (Session& session : sessions_) session.close_inherited();
    }

private:
    // A server that leaves so many questions unanswered gets no more of them.
    static constexpr std::size_t most_acquires = 32;
    static constexpr std::size_t most_under_way = 64;
    static constexpr std::chrono::milliseconds shortest_grace{50};

    std::shared_ptr<Round> begin(Question what, const Claim& claim, std::vector<bool> lacking) {
        auto round = std::make_shared<Round>(what, claim, std::move(lacking), *caretaker_);
        round->exchanges.reserve(sessions_.size());
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            Session& session = sessions_[i];
            if (session.is_busy()) session.step();  // takes the answers that came after their caller had gone
            const bool asks = !round->lacks(i) && session.under_way() < (what == Question::acquire ? most_acquires : most_under_way);
            Exchange* const exchange = round->exchanges.emplace_back(asks ? make(*round, session) : nullptr).get();
            if (exchange == nullptr) continue;
            session.begin(*exchange, Clock::time_point::max(), round);
            session.step();
        }
        return round;
    }

    static std::unique_ptr<Exchange> make(const Round& round, Session& session) {
        // Scripts are sent whole: nobody may be there to read a NOSCRIPT.
        const auto compare_and = [&](CompareAnd::Do what) { return std::make_unique<CompareAnd>(what, round.claim, session.dialect(), Naming::whole); };
        switch (round.what) {
            case Question::ping: break;
            case Question::acquire: return std::make_unique<Acquire>(round.claim, session.dialect(), Acquire::Watch::no);
            case Question::extend: return compare_and(CompareAnd::Do::extend);
            case Question::release:
            case Question::unawaited_release: return compare_and(CompareAnd::Do::release);
        }
        return std::make_unique<Ping>();
    }

    bool is_decided(const Round& round) const {
        return round.votes().is_decided() || is_sent(round) || same_server() != nullptr;
    }

    /// Whether a majority has been told, where that is all that is asked for.
    bool is_sent(const Round& round) const {
        if (round.what != Question::unawaited_release) return false;
        Votes told{.nodes = sessions_.size()};
        for (std::size_t i = 0; i < sessions_.size(); ++i)
            if (round.is_out(i) ? sessions_[i].is_greeted() : round.answer(i) == Answer::yes) ++told.yes;
        return told.is_granted();
    }

    /// Until something comes from a server, or a time limit passes; and takes it.
    void wait(const Patience& patience) {
        descriptors_.clear();
        busy_.clear();
        auto until = patience.until;
        for (Session& session : sessions_) {
            if (!session.is_busy()) continue;
            descriptors_.push_back({session.descriptor(), session.events(), 0});
            busy_.push_back(&session);
            until = std::min(until, session.wake());
        }
        wait_ready(descriptors_, {until, patience.stop});
        const auto now = Clock::now();
        for (std::size_t i = 0; i < busy_.size(); ++i)
            if (descriptors_[i].revents != 0 || now >= busy_[i]->wake()) busy_[i]->step();
    }

    /// As long again as the others took, but not so short that a busy machine makes the difference.
    static Clock::time_point grace(const Round& round, const Patience& patience) {
        const auto now = Clock::now();
        return std::min(patience.until, after(now, std::max<Clock::duration>(now - round.sent, shortest_grace)));
    }

    /// Until when it is worth waiting for a server's answer; min() where none is to come.
    Clock::time_point hope(const Round& round, std::size_t i) const {
        if (!round.is_out(i)) return Clock::time_point::min();
        if (sessions_[i].is_greeted()) return after(sessions_[i].due(), shortest_grace + round.claim.acknowledged.timeout);
        if (!trusted_[i]) return Clock::time_point::min();
        return sessions_[i].connections() == 0 ? Clock::time_point::max() : after(round.sent, shortest_grace);
    }
    /// For any of them.
    Clock::time_point hope(const Round& round) const {
        auto latest = Clock::time_point::min();
        for (std::size_t i = 0; i < sessions_.size(); ++i) latest = std::max(latest, hope(round, i));
        return latest;
    }

    /// The lock is to be on as many servers as can be: one that is being connected, and is new or was well before, gets as long again as the others
    /// took. Whoever has not been asked by then is not asked later, when nobody would know any more.
    void welcome_late_ones(const Round& round, const Patience& patience) {
        const auto is_late = [&](std::size_t i) { return round.is_out(i) && !sessions_[i].is_greeted(); };
        const auto is_any_expected = [&] {
            for (std::size_t i = 0; i < sessions_.size(); ++i)
                if (trusted_[i] && is_late(i)) return true;
            return false;
        };
        if (is_any_expected()) {
            const auto until = grace(round, patience);
            while (is_any_expected() && !patience.stop.stop_requested() && Clock::now() < until) wait({until, patience.stop});
        }
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            if (round.exchanges[i] == nullptr) continue;
            trusted_[i] = sessions_[i].is_greeted();
            if (is_late(i)) sessions_[i].give_up(*round.exchanges[i]);
        }
    }

    std::string said(const Round& round, std::size_t i) const {
        const std::string& name = sessions_[i].name();
        if (round.is_out(i)) return name + (round.votes().is_decided() ? ": not waited for" : ": no answer in time");
        if (round.exchanges[i] == nullptr) return name + (round.lacks(i) ? " does not have it" : ": has not answered earlier questions yet");
        const Outcome& outcome = *round.exchanges[i]->ended;
        return outcome.answer == Answer::yes ? name + " said yes" : outcome.answer == Answer::no ? name + " said no" : outcome.detail;
    }

    /// Two names may lead to one server, whose vote would count twice. Null where all that are connected differ, as far as they say who they are.
    const Session* same_server() const {
        for (std::size_t i = 1; i < sessions_.size(); ++i) {
            const Session& one = sessions_[i];
            if (!one.is_greeted() || one.run_id().empty()) continue;
            for (std::size_t j = 0; j < i; ++j)
                if (sessions_[j].is_greeted() && sessions_[j].run_id() == one.run_id()) return &one;
        }
        return nullptr;
    }

    struct Left {
        std::string key, token;
        std::chrono::milliseconds ttl;
        std::vector<bool> others;
    };

    Caretaker* caretaker_;
    std::deque<Session> sessions_;
    std::unique_ptr<std::mutex> left_mutex_ = std::make_unique<std::mutex>();
    std::vector<Left> left_;
    std::vector<bool> trusted_;  // was connected when last asked, or has never been asked
    std::vector<pollfd> descriptors_;
    std::vector<Session*> busy_;
};

}  // namespace hiredlock::detail
