// Releasing and extending on one server, in every form that a server may know.
#include "scripted.hpp"

#include <hiredlock/compare_and.hpp>

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

const std::string noscript = "NOSCRIPT No matching script. Please use EVAL.";
const std::string noperm = "NOPERM this user has no permissions to run the command";
const std::string unknown = "ERR unknown command 'DELEX', with args beginning with: 'k' 't' ";
const std::string oom = "OOM command not allowed when used memory > 'maxmemory'.";

class Comparing {
public:
    Comparing(CompareAnd::Do what, Cas wanted) : dialect(wanted), exchange(what, claim, dialect) {}

    Lines start() {
        exchange.start(said);
        return said.take();
    }
    Lines answer(const Reply& reply) {
        decided = exchange.take(reply, said);
        return said.take();
    }
    bool failed_with(Errc code, std::string_view words) const {
        return decided && exchange.answer == Answer::failed && exchange.error == code && exchange.words.find(words) != std::string::npos;
    }
    bool is(Answer wanted) const { return decided && exchange.answer == wanted && !exchange.error; }

    Claim claim{.key = "k", .token = "t", .ttl = 1500ms};
    Dialect dialect;
    CompareAnd exchange;
    Said said;
    bool decided = false;
};

class Releasing : public Comparing {
public:
    explicit Releasing(Cas wanted = Cas::automatic) : Comparing(CompareAnd::Do::release, wanted) {}
};
class Extending : public Comparing {
public:
    explicit Extending(Cas wanted = Cas::automatic) : Comparing(CompareAnd::Do::extend, wanted) {}
};

TEST(ReleaseExchange, HasAFormForEachServer) {
    EXPECT_EQ(Releasing{Cas::script}.start(), (Lines{"EVALSHA <release> 1 k t"}));
    EXPECT_EQ(Releasing{Cas::tair}.start(), (Lines{"CAD k t"}));
    EXPECT_EQ(Releasing{Cas::delifeq}.start(), (Lines{"DELIFEQ k t"}));
    EXPECT_EQ(Releasing{Cas::delex}.start(), (Lines{"DELEX k IFEQ t"}));
    EXPECT_EQ(Releasing{Cas::automatic}.start(), (Lines{"EVALSHA <release> 1 k t"}));
}

TEST(ExtendExchange, HasAFormForEachServer) {
    EXPECT_EQ(Extending{Cas::script}.start(), (Lines{"EVALSHA <extend> 1 k t 1500"}));
    EXPECT_EQ(Extending{Cas::tair}.start(), (Lines{"CAS k t t PX 1500"}));
    EXPECT_EQ(Extending{Cas::delifeq}.start(), (Lines{"SET k t IFEQ t PX 1500"}));
    EXPECT_EQ(Extending{Cas::delex}.start(), (Lines{"SET k t IFEQ t PX 1500"}));
}

TEST(ReleaseExchange, OnlyOneIsSuccess) {
    for (const Cas form : {Cas::script, Cas::tair, Cas::delifeq, Cas::delex}) {
        for (const long long value : {0LL, -1LL, 2LL}) {
            Releasing one{form};
            one.start();
            EXPECT_EQ(one.answer(number(value)), Lines{});
            EXPECT_TRUE(one.is(Answer::no)) << value;
        }
        Releasing one{form};
        one.start();
        one.answer(number(1));
        EXPECT_TRUE(one.is(Answer::yes));
    }
}

TEST(ReleaseExchange, ConfirmsTheFormThatCanBeSentWithoutWaiting) {
    for (const Cas form : {Cas::tair, Cas::delifeq, Cas::delex}) {
        Releasing one{form};
        one.start();
        one.answer(number(1));
        EXPECT_TRUE(one.dialect.confirmed());
    }
    Releasing by_sha1{Cas::script};
    by_sha1.start();
    by_sha1.answer(number(1));
    EXPECT_FALSE(by_sha1.dialect.confirmed()) << "EVAL may be denied where EVALSHA is not";
    Releasing whole{Cas::script};
    whole.start();
    whole.answer(error(noscript));
    whole.answer(number(1));
    EXPECT_TRUE(whole.dialect.confirmed());
}

TEST(ReleaseExchange, ThatIsGivenUpIsSaidSoThatAServerWithoutTheScriptUnderstands) {
    Releasing one;
    one.start();
    one.exchange.give_up(one.said);
    EXPECT_EQ(one.said.take(), (Lines{"EVAL <release> 1 k t"}));
    Releasing native{Cas::delex};
    native.start();
    native.exchange.give_up(native.said);
    EXPECT_TRUE(native.said.take().empty());
    Extending extend;
    extend.start();
    extend.exchange.give_up(extend.said);
    EXPECT_TRUE(extend.said.take().empty());
}

TEST(ExtendExchange, OneOrOkIsSuccessAndNilIsNo) {
    for (const Cas form : {Cas::script, Cas::tair, Cas::delifeq, Cas::delex}) {
        for (const Reply& reply : {number(1), ok()}) {
            Extending one{form};
            one.start();
            one.answer(reply);
            EXPECT_TRUE(one.is(Answer::yes));
        }
        for (const Reply& reply : {number(0), number(-1), nil()}) {
            Extending one{form};
            one.start();
            one.answer(reply);
            EXPECT_TRUE(one.is(Answer::no));
        }
    }
}

TEST(ReleaseExchange, AnswersOfAnotherTypeMakeNoSense) {
    for (const Reply& reply : {text("QUEUED"), array({}), other()}) {
        Releasing release;
        release.start();
        release.answer(reply);
        EXPECT_TRUE(release.failed_with(Errc::protocol, "type"));
        Extending extend;
        extend.start();
        extend.answer(reply);
        EXPECT_TRUE(extend.failed_with(Errc::protocol, "type"));
    }
}

TEST(ReleaseExchange, IsSaidInFullOnceWhereTheScriptIsNotKnown) {
    Releasing one;
    one.start();
    EXPECT_EQ(one.answer(error(noscript)), (Lines{"EVAL <release> 1 k t"}));
    EXPECT_FALSE(one.decided);
    one.answer(number(1));
    EXPECT_TRUE(one.is(Answer::yes));

    Releasing again;
    again.start();
    again.answer(error(noscript));
    EXPECT_EQ(again.answer(error(noscript)), Lines{});
    EXPECT_TRUE(again.failed_with(Errc::protocol, "NOSCRIPT"));
}

TEST(ExtendExchange, IsSaidInFullWhereTheScriptIsNotKnownAndIsNotTakenForLost) {
    Extending one;
    one.start();
    EXPECT_EQ(one.answer(error(noscript)), (Lines{"EVAL <extend> 1 k t 1500"}));
    EXPECT_FALSE(one.decided);
    one.answer(number(1));
    EXPECT_TRUE(one.is(Answer::yes));
}

TEST(ReleaseExchange, TheScriptByNameAllowedAndInFullDeniedEndsWithoutALoop) {
    Releasing one{Cas::script};
    one.start();
    EXPECT_EQ(one.answer(error(noscript)), (Lines{"EVAL <release> 1 k t"}));
    EXPECT_EQ(one.answer(error(noperm)), Lines{});
    EXPECT_TRUE(one.failed_with(Errc::denied, "NOPERM"));
}

TEST(ReleaseExchange, ARefusedNativeFormBecomesTheScriptAndTheConnectionRemembers) {
    for (const std::string& words : {noperm, unknown, std::string{"ERR syntax error"}}) {
        Releasing one;
        one.dialect.found(true, false, false);
        EXPECT_EQ(one.start(), (Lines{"DELEX k IFEQ t"}));
        EXPECT_EQ(one.answer(error(words)), (Lines{"EVALSHA <release> 1 k t"}));
        one.answer(number(1));
        EXPECT_TRUE(one.is(Answer::yes));
        EXPECT_EQ(one.dialect.current(), Cas::script);
        EXPECT_EQ(one.start(), (Lines{"EVALSHA <release> 1 k t"}));
    }
}

TEST(ReleaseExchange, WhereBothFormsAreRefusedTheFirstWordsAreToldAndNothingLoops) {
    Releasing one;
    one.dialect.found(false, true, false);
    EXPECT_EQ(one.start(), (Lines{"DELIFEQ k t"}));
    EXPECT_EQ(one.answer(error("NOPERM first")), (Lines{"EVALSHA <release> 1 k t"}));
    EXPECT_EQ(one.answer(error("NOPERM second")), Lines{});
    EXPECT_TRUE(one.failed_with(Errc::denied, "first")) << one.exchange.words;
    EXPECT_EQ(one.dialect.current(), Cas::delifeq) << "rights may change: the first is tried first again";
}

TEST(ReleaseExchange, WhereNothingIsKnownEveryFormIsTriedOnce) {
    Releasing one;
    std::vector<std::string> tried = one.start();
    for (int i = 0; i < 10 && !one.decided; ++i)
        for (auto& line : one.answer(error(noperm))) tried.push_back(line);
    EXPECT_EQ(tried, (Lines{"EVALSHA <release> 1 k t", "DELEX k IFEQ t", "DELIFEQ k t", "CAD k t"}));
    EXPECT_TRUE(one.failed_with(Errc::denied, "NOPERM"));
}

TEST(ReleaseExchange, TheFormAskedForIsTheOnlyOne) {
    for (const Cas form : {Cas::script, Cas::tair, Cas::delifeq, Cas::delex}) {
        Releasing one{form};
        one.start();
        EXPECT_EQ(one.answer(error(noperm)), Lines{});
        EXPECT_TRUE(one.failed_with(Errc::denied, "NOPERM"));
    }
}

TEST(ReleaseExchange, WhatAnotherFormCannotMendIsTold) {
    for (const auto& [words, code] : {std::pair{"READONLY You can't write", Errc::read_only}, {"WRONGTYPE Operation", Errc::wrong_type},
                                      {"ERR Key should be of string type", Errc::wrong_type}, {"LOADING Redis", Errc::loading}, {"MISCONF Redis", Errc::disk_error}}) {
        Releasing one;
        one.dialect.found(true, false, false);
        one.start();
        EXPECT_EQ(one.answer(error(words)), Lines{});
        EXPECT_TRUE(one.failed_with(code, words)) << words;
        EXPECT_EQ(one.dialect.current(), Cas::delex);
    }
}

TEST(ExtendExchange, OutOfMemoryIsRepeatedAsTheScriptThisOnce) {
    for (const bool tair : {false, true}) {
        Extending one;
        one.dialect.found(!tair, false, tair);
        one.start();
        EXPECT_EQ(one.answer(error(oom)), (Lines{"EVALSHA <extend> 1 k t 1500"}));
        EXPECT_EQ(one.answer(error(noscript)), (Lines{"EVAL <extend> 1 k t 1500"}));
        one.answer(number(1));
        EXPECT_TRUE(one.is(Answer::yes));
        EXPECT_EQ(one.dialect.current(), tair ? Cas::tair : Cas::delex);
    }
}

TEST(ExtendExchange, OutOfMemoryIsNeverLost) {
    for (const std::string& second : {oom, noperm, std::string{"ERR unknown command 'EVALSHA'"}}) {
        Extending one;
        one.dialect.found(true, false, false);
        one.start();
        one.answer(error(oom));
        EXPECT_EQ(one.answer(error(second)), Lines{});
        EXPECT_TRUE(one.failed_with(Errc::out_of_memory, "OOM")) << one.exchange.words;
    }
    Extending script{Cas::script};
    script.start();
    EXPECT_EQ(script.answer(error(oom)), Lines{});
    EXPECT_TRUE(script.failed_with(Errc::out_of_memory, "OOM"));
    Extending native{Cas::delex};
    native.start();
    EXPECT_EQ(native.answer(error(oom)), Lines{}) << "another form was not asked for";
    EXPECT_TRUE(native.failed_with(Errc::out_of_memory, "OOM"));
}

TEST(ReleaseExchange, GoneIsSuccessWhereAnEarlierOneWasSentAndNotAnswered) {
    Releasing one;
    one.start();
    one.exchange.maybe_done = true;
    one.start();
    one.answer(number(0));
    EXPECT_TRUE(one.is(Answer::yes));
    Extending extend;
    extend.start();
    extend.exchange.maybe_done = true;
    extend.start();
    extend.answer(number(0));
    EXPECT_TRUE(extend.is(Answer::no)) << "an extend that was executed leaves the key in place";
}

TEST(ReleaseExchange, MayBeStartedAgain) {
    Releasing one;
    EXPECT_TRUE(one.exchange.is_repeatable());
    one.dialect.found(true, false, false);
    one.start();
    one.answer(error(noperm));
    one.dialect = Dialect{Cas::automatic};
    EXPECT_EQ(one.start(), (Lines{"EVALSHA <release> 1 k t"}));
    EXPECT_EQ(one.answer(error("LOADING Redis is loading")), Lines{});
    EXPECT_TRUE(one.failed_with(Errc::loading, "LOADING")) << "what was said on the old connection is forgotten";
}

TEST(ReleaseExchange, NeverWaitsForReplicas) {
    Releasing one;
    one.claim.acknowledged = {.replicas = 1, .timeout = 100ms};
    one.start();
    EXPECT_EQ(one.answer(number(1)), Lines{});
    EXPECT_TRUE(one.is(Answer::yes));
}

TEST(ExtendExchange, WaitsForReplicasBehindASuccess) {
    Extending one;
    one.claim.acknowledged = {.replicas = 1, .timeout = 100ms};
    one.start();
    EXPECT_EQ(one.answer(number(1)), (Lines{"WAIT 1 100"}));
    EXPECT_FALSE(one.decided);
    one.answer(number(1));
    EXPECT_TRUE(one.is(Answer::yes));

    Extending refused;
    refused.claim.acknowledged = {.replicas = 1, .timeout = 100ms};
    refused.start();
    EXPECT_EQ(refused.answer(number(0)), Lines{});
    EXPECT_TRUE(refused.is(Answer::no));

    Extending few;
    few.claim.acknowledged = {.replicas = 2, .timeout = 100ms};
    few.start();
    few.answer(number(1));
    few.answer(number(1));
    EXPECT_TRUE(few.failed_with(Errc::not_replicated, "1 of 2"));
}

TEST(ReleaseExchange, NeverRepeatsATokenThatTheServerQuotes) {
    Releasing one{Cas::delex};
    one.start();
    one.answer(error("ERR unknown command 'DELEX', with args beginning with: 'k' 'secret-token' "));
    EXPECT_EQ(one.exchange.words.find("secret-token"), std::string::npos);
    EXPECT_TRUE(one.failed_with(Errc::unsupported, "DELEX"));
}

}  // namespace
