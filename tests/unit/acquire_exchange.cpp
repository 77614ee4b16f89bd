// Acquiring on one server: what is said, and what is made of every kind of answer.
#include "scripted.hpp"

#include <hiredlock/acquire.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

using namespace hiredlock::detail;
using namespace replies;
using namespace std::chrono_literals;
using hiredlock::Answer;
using hiredlock::Cas;
using hiredlock::Claim;
using hiredlock::Errc;
using Lines = std::vector<std::string>;

namespace {

class Acquiring : public testing::Test {
protected:
    /// Gives one answer; what is said to it.
    Lines answer(const Reply& reply) {
        decided = exchange.take(reply, said);
        return said.take();
    }
    Lines start() {
        exchange.start(said);
        return said.take();
    }
    void expect_failed(Errc code, std::string_view words) {
        EXPECT_TRUE(decided);
        EXPECT_EQ(exchange.answer, Answer::failed);
        EXPECT_EQ(exchange.error, code) << exchange.error.message();
        EXPECT_NE(exchange.words.find(words), std::string::npos) << exchange.words;
    }
    void expect(Answer wanted) {
        EXPECT_TRUE(decided);
        EXPECT_EQ(exchange.answer, wanted);
        EXPECT_FALSE(exchange.error);
    }

    Claim claim{.key = "k", .token = "t", .ttl = 1500ms};
    Dialect dialect{Cas::automatic};
    Acquire exchange{claim, dialect, Acquire::Watch::no};
    Said said;
    bool decided = false;

    const std::string denied = "NOPERM this user has no permissions to run the 'evalsha' command";
};

TEST_F(Acquiring, IsOneCommand) {
    EXPECT_EQ(start(), (Lines{"SET k t NX PX 1500"}));
    EXPECT_EQ(answer(ok()), Lines{});
    expect(Answer::yes);
    EXPECT_FALSE(exchange.is_repeatable());
}

TEST_F(Acquiring, SaysSecondsWhereTheyAreWhole) {
    claim.ttl = 30s;
    EXPECT_EQ(start(), (Lines{"SET k t NX EX 30"}));
    claim.ttl = 999ms;
    EXPECT_EQ(start(), (Lines{"SET k t NX PX 999"}));
}

TEST_F(Acquiring, NilIsNo) {
    start();
    EXPECT_EQ(answer(nil()), Lines{});
    expect(Answer::no);
}

TEST_F(Acquiring, AnErrorSaysWhatItIs) {
    start();
    answer(error("OOM command not allowed when used memory > 'maxmemory'."));
    expect_failed(Errc::out_of_memory, "OOM command not allowed");
    start();
    answer(error("READONLY You can't write against a read only replica."));
    expect_failed(Errc::read_only, "READONLY");
}

TEST_F(Acquiring, AnswersOfAnotherTypeMakeNoSense) {
    for (const Reply& reply : {number(1), number(0), text("QUEUED"), array({}), other()}) {
        start();
        answer(reply);
        expect_failed(Errc::protocol, "type");
    }
}

TEST_F(Acquiring, GivingUpSaysTheWholeScriptBehindIt) {
    start();
    exchange.give_up(said);
    ASSERT_EQ(said.take(), (Lines{"EVAL <release> 1 k t"}));
    dialect.found(true, false, false);
    exchange.give_up(said);
    EXPECT_EQ(said.take(), (Lines{"DELEX k IFEQ t"}));
}

TEST_F(Acquiring, DeletesAStaleTokenFirstAndJudgesTheSet) {
    claim.stale = "old";
    for (const Reply& about_stale : {number(1), number(0), nil(), error("NOPERM"), other()}) {
        dialect = Dialect{Cas::automatic};
        EXPECT_EQ(start(), (Lines{"EVAL <release> 1 k old", "SET k t NX PX 1500"}));
        EXPECT_EQ(answer(about_stale), Lines{});
        EXPECT_FALSE(decided);
        answer(ok());
        expect(Answer::yes);
    }
    start();
    answer(number(0));
    answer(nil());
    expect(Answer::no);
}

TEST_F(Acquiring, DeletesAStaleTokenInAnotherFormAfterARefusal) {
    claim.stale = "old";
    start();
    answer(error("NOPERM"));
    answer(nil());
    expect(Answer::no);
    EXPECT_EQ(start().front(), "DELEX k IFEQ old");
}

TEST_F(Acquiring, WatchingLooksAtTheKeyBehindTheSetAndWaitsForBothAnswers) {
    Acquire watching{claim, dialect, Acquire::Watch::yes};
    for (const long long left : {1234LL, -1LL, -2LL}) {
        watching.start(said);
        EXPECT_EQ(said.take(), (Lines{"SET k t NX PX 1500", "PTTL k"}));
        EXPECT_FALSE(watching.take(nil(), said));
        EXPECT_TRUE(watching.take(number(left), said));
        EXPECT_EQ(watching.answer, Answer::no);
        EXPECT_EQ(watching.left, left);
    }
    watching.start(said);
    EXPECT_FALSE(watching.take(ok(), said));
    EXPECT_TRUE(watching.take(error("NOPERM"), said)) << "the grant counts all the same";
    EXPECT_EQ(watching.answer, Answer::yes);
    EXPECT_NE(watching.left, -2) << "which would say that the key is gone";
}

TEST_F(Acquiring, WatchingStillDecidesByEveryAnswerThatIsOut) {
    claim.fence_key = "n";
    claim.acknowledged = {.replicas = 1, .timeout = 50ms};
    Acquire watching{claim, dialect, Acquire::Watch::yes};
    watching.start(said);
    EXPECT_EQ(said.take(), (Lines{"EVALSHA <fenced> 2 k n t PX 1500", "PTTL k"}));
    EXPECT_FALSE(watching.take(error("NOSCRIPT No matching script."), said));
    EXPECT_EQ(said.take(), (Lines{"EVAL <fenced> 2 k n t PX 1500", "PTTL k"}));
    EXPECT_FALSE(watching.take(number(-2), said));
    EXPECT_FALSE(watching.take(number(3), said));
    EXPECT_EQ(said.take(), (Lines{"WAIT 1 50"}));
    EXPECT_FALSE(watching.take(number(1500), said));
    EXPECT_TRUE(watching.take(number(1), said));
    EXPECT_EQ(watching.answer, Answer::yes);
    EXPECT_EQ(watching.fencing, 3U);
}

class AcquiringWithReplicas : public Acquiring {
protected:
    AcquiringWithReplicas() { claim.acknowledged = {.replicas = 2, .timeout = 100ms}; }
};

TEST_F(AcquiringWithReplicas, WaitsBehindAGrantOnly) {
    EXPECT_EQ(start(), (Lines{"SET k t NX PX 1500"}));
    EXPECT_EQ(answer(nil()), Lines{});
    expect(Answer::no);
    start();
    EXPECT_EQ(answer(ok()), (Lines{"WAIT 2 100"}));
    EXPECT_FALSE(decided);
    EXPECT_EQ(answer(number(2)), Lines{});
    expect(Answer::yes);
    EXPECT_GE(exchange.time_for_answers(1s), 1100ms);
}

TEST_F(AcquiringWithReplicas, AShortfallUndoesTheGrant) {
    start();
    answer(ok());
    EXPECT_EQ(answer(number(1)), (Lines{"EVAL <release> 1 k t"}));
    EXPECT_FALSE(decided);
    EXPECT_EQ(answer(number(1)), Lines{});
    expect_failed(Errc::not_replicated, "1 of 2");
}

TEST_F(AcquiringWithReplicas, AnErrorUndoesTheGrantAndIsTold) {
    start();
    answer(ok());
    EXPECT_EQ(answer(error("ERR WAIT cannot be used with replica instances.")), (Lines{"EVAL <release> 1 k t"}));
    answer(number(1));
    expect_failed(Errc::protocol, "WAIT cannot be used");
}

TEST_F(AcquiringWithReplicas, WhereUndoingFailsTheTokenMayStay) {
    start();
    answer(ok());
    answer(number(0));
    answer(error("NOPERM"));
    EXPECT_TRUE(decided);
    EXPECT_EQ(exchange.answer, Answer::unknown);
    EXPECT_EQ(exchange.error, Errc::not_replicated);
}

TEST_F(AcquiringWithReplicas, AnswersOfAnotherTypeAcknowledgeNothing) {
    for (const Reply& reply : {nil(), ok(), other(), array({}), array({text("2"), text("2")})}) {
        start();
        answer(ok());
        EXPECT_EQ(answer(reply), (Lines{"EVAL <release> 1 k t"}));
        answer(number(1));
        EXPECT_EQ(exchange.answer, Answer::failed);
        EXPECT_EQ(exchange.error, Errc::protocol) << exchange.error.message();
    }
}

TEST_F(AcquiringWithReplicas, OnDiskAsksForBoth) {
    claim.acknowledged = {.local = 1, .replicas = 1, .timeout = 100ms, .on_disk = true};
    start();
    EXPECT_EQ(answer(ok()), (Lines{"WAITAOF 1 1 100"}));
    answer(array({number(1), number(1)}));
    expect(Answer::yes);
    for (const auto& [local, replicas] : {std::pair{0, 1}, {1, 0}, {0, 0}}) {
        start();
        answer(ok());
        EXPECT_EQ(answer(array({number(local), number(replicas)})), (Lines{"EVAL <release> 1 k t"}));
        answer(number(1));
        expect_failed(Errc::not_replicated, "acknowledged");
    }
}

TEST_F(AcquiringWithReplicas, OnTheServersOwnDiskOnlyAnArrayOfNumbersCounts) {
    claim.acknowledged = {.local = 1, .replicas = 0, .timeout = 100ms, .on_disk = true};
    for (const Reply& reply : {nil(), ok(), number(1), other(), array({number(1)}), array({text("x"), text("y")})}) {
        start();
        answer(ok());
        EXPECT_EQ(answer(reply), (Lines{"EVAL <release> 1 k t"})) << "nothing says that it is on a disk";
        EXPECT_FALSE(decided);
    }
}

class AcquiringWithANumber : public Acquiring {
protected:
    AcquiringWithANumber() { claim.fence_key = "n"; }
    const std::string by_name = "EVALSHA <fenced> 2 k n t PX 1500";
    const std::string whole = "EVAL <fenced> 2 k n t PX 1500";
    const Lines transaction = {"MULTI", "SET k t NX PX 1500", "INCR n", "EXEC"};
};

TEST_F(AcquiringWithANumber, IsOneScript) {
    EXPECT_EQ(start(), (Lines{by_name}));
    EXPECT_EQ(answer(number(42)), Lines{});
    expect(Answer::yes);
    EXPECT_EQ(exchange.fencing, 42U);
    start();
    answer(nil());
    expect(Answer::no);
}

TEST_F(AcquiringWithANumber, IsSaidInFullWhereTheScriptIsNotKnown) {
    start();
    EXPECT_EQ(answer(error("NOSCRIPT No matching script. Please use EVAL.")), (Lines{whole}));
    EXPECT_FALSE(decided);
    answer(number(7));
    expect(Answer::yes);
    EXPECT_EQ(exchange.fencing, 7U);
}

TEST_F(AcquiringWithANumber, IsSaidInFullOnce) {
    start();
    answer(error("NOSCRIPT No matching script. Please use EVAL."));
    EXPECT_EQ(answer(error("NOSCRIPT No matching script. Please use EVAL.")), Lines{});
    expect_failed(Errc::protocol, "NOSCRIPT");
}

TEST_F(AcquiringWithANumber, IsATransactionWhereScriptsAreDenied) {
    start();
    EXPECT_EQ(answer(error(denied)), transaction);
    for (const Reply& reply : {ok(), text("QUEUED"), text("QUEUED")}) {
        EXPECT_EQ(answer(reply), Lines{});
        EXPECT_FALSE(decided);
    }
    answer(array({ok(), number(9)}));
    expect(Answer::yes);
    EXPECT_EQ(exchange.fencing, 9U);
    EXPECT_EQ(start(), transaction) << "the connection remembers";
}

TEST_F(AcquiringWithANumber, IsATransactionWhereTheWholeScriptIsDenied) {
    start();
    answer(error("NOSCRIPT No matching script. Please use EVAL."));
    EXPECT_EQ(answer(error(denied)), transaction);
}

TEST_F(AcquiringWithANumber, IsATransactionWhereScriptsAreNotThere) {
    start();
    EXPECT_EQ(answer(error("ERR unknown command 'EVALSHA', with args beginning with: 'sha' ")), transaction);
}

TEST_F(AcquiringWithANumber, ARefusedTransactionIsNo) {
    start();
    answer(error(denied));
    for (const Reply& reply : {ok(), text("QUEUED"), text("QUEUED")}) answer(reply);
    answer(array({nil(), number(9)}));
    expect(Answer::no);
}

TEST_F(AcquiringWithANumber, ATransactionWithoutANumberIsUndone) {
    start();
    answer(error(denied));
    for (const Reply& reply : {ok(), text("QUEUED"), text("QUEUED")}) answer(reply);
    EXPECT_EQ(answer(array({ok(), error("WRONGTYPE Operation against a key holding the wrong kind of value")})), (Lines{"EVAL <release> 1 k t"}));
    EXPECT_FALSE(decided);
    answer(number(1));
    expect_failed(Errc::wrong_type, "WRONGTYPE");
}

TEST_F(AcquiringWithANumber, ATransactionThatWasNeverBegunIsUndoneAndItsFirstWordsAreTold) {
    start();
    answer(error(denied));
    answer(error("NOPERM this user has no permissions to run the 'multi' command"));
    answer(ok());
    answer(number(5));
    EXPECT_EQ(answer(error("ERR EXEC without MULTI")), (Lines{"EVAL <release> 1 k t"}));
    answer(number(1));
    expect_failed(Errc::denied, "'multi'");
}

TEST_F(AcquiringWithANumber, AnAbortedTransactionTellsWhatAbortedIt) {
    start();
    answer(error(denied));
    answer(ok());
    answer(text("QUEUED"));
    answer(error("NOPERM No permissions to access a key"));
    answer(error("EXECABORT Transaction discarded because of previous errors."));
    answer(number(0));
    expect_failed(Errc::denied, "No permissions to access a key");
}

TEST_F(AcquiringWithANumber, AnErrorOfTheScriptIsTold) {
    start();
    answer(error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    expect_failed(Errc::wrong_type, "WRONGTYPE");
    for (const Reply& reply : {ok(), array({}), other()}) {
        start();
        answer(reply);
        expect_failed(Errc::protocol, "type");
    }
}

TEST_F(AcquiringWithANumber, WaitsForReplicasBehindTheNumber) {
    claim.acknowledged = {.replicas = 1, .timeout = 50ms};
    start();
    EXPECT_EQ(answer(number(3)), (Lines{"WAIT 1 50"}));
    answer(number(1));
    expect(Answer::yes);
    EXPECT_EQ(exchange.fencing, 3U);
}

}  // namespace
