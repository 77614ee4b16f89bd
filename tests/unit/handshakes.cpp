// The first words on a connection, and what their answers teach.
#include "scripted.hpp"

#include <hiredlock/handshake.hpp>

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

using namespace hiredlock::detail;
using hiredlock::Answer;
using hiredlock::Cas;
using hiredlock::Endpoint;
using hiredlock::Errc;
using namespace replies;
using Lines = std::vector<std::string>;

namespace {

const std::string ask_abilities = "COMMAND INFO DELEX DELIFEQ CAD CAS";

Reply abilities(bool delex, bool delifeq, bool cad, bool cas) {
    const auto one = [](bool has) { return has ? array({text("name"), number(3)}) : nil(); };
    return array({one(delex), one(delifeq), one(cad), one(cas)});
}

class Handshakes : public testing::Test {
protected:
    /// Plays a handshake; true where it was decided at the last reply and not before.
    bool play(const std::vector<Reply>& answers) {
        shake.emplace(endpoint, redirect, identify);
        return replay(answers);
    }
    /// The same one once more.
    bool replay(const std::vector<Reply>& answers) {
        shake->start(said);
        std::size_t taken = 0;
        bool decided = false;
        while (!decided && taken < answers.size()) decided = shake->take(answers[taken++], said);
        dialect = shake->dialect();
        return decided && taken == answers.size();
    }

    Endpoint endpoint;
    Dialect dialect{Cas::automatic};
    Said said;
    long long redirect = 0;
    bool identify = false;
    std::optional<Handshake> shake;
};

TEST_F(Handshakes, SayAllAtOnce) {
    endpoint = {.username = "me", .password = "pw", .database = 3, .client_name = "us"};
    EXPECT_TRUE(play({ok(), ok(), ok(), abilities(false, false, false, false)}));
    EXPECT_EQ(said.take(), (Lines{"AUTH me pw", "SELECT 3", "CLIENT SETNAME us", ask_abilities}));
    EXPECT_EQ(shake->answer, Answer::yes);
}

TEST_F(Handshakes, SayNothingThatIsNotNeeded) {
    endpoint = {.password = "pw", .client_name = "", .cas = Cas::script};
    EXPECT_TRUE(play({ok()}));
    EXPECT_EQ(said.take(), (Lines{"AUTH pw"}));
    endpoint.password.clear();
    EXPECT_FALSE(Handshake(endpoint, redirect, identify).is_needed());
}

TEST_F(Handshakes, FindTheNativeCommand) {
    EXPECT_TRUE(play({ok(), abilities(true, false, false, false)}));
    EXPECT_EQ(dialect.current(), Cas::delex);
    EXPECT_TRUE(play({ok(), abilities(false, true, false, false)}));
    EXPECT_EQ(dialect.current(), Cas::delifeq);
    EXPECT_TRUE(play({ok(), abilities(false, false, true, true)}));
    EXPECT_EQ(dialect.current(), Cas::tair);
    EXPECT_TRUE(play({ok(), abilities(false, false, true, false)}));
    EXPECT_EQ(dialect.current(), Cas::script) << "CAD without CAS is not enough";
    EXPECT_TRUE(play({ok(), abilities(false, false, false, false)}));
    EXPECT_EQ(dialect.current(), Cas::script);
}

TEST_F(Handshakes, WithoutCommandInfoTryTheScriptAndThenTheNativeOnes) {
    for (const Reply& answer : {error("NOPERM this user has no permissions to run the 'command|info' command"), nil(), array({}), other()}) {
        EXPECT_TRUE(play({ok(), answer}));
        EXPECT_EQ(shake->answer, Answer::yes);
        EXPECT_EQ(dialect.current(), Cas::script);
        EXPECT_TRUE(dialect.next());
        EXPECT_NE(dialect.current(), Cas::script);
    }
}

TEST_F(Handshakes, RefuseAServerThatLacksTheCommandAskedFor) {
    for (const Cas wanted : {Cas::delex, Cas::delifeq, Cas::tair}) {
        endpoint.cas = wanted;
        EXPECT_TRUE(play({ok(), abilities(false, false, true, false)}));
        EXPECT_EQ(shake->answer, Answer::failed);
        EXPECT_EQ(shake->error, Errc::unsupported);
        EXPECT_TRUE(play({ok(), abilities(true, true, true, true)}));
        EXPECT_EQ(shake->answer, Answer::yes);
        EXPECT_EQ(dialect.current(), wanted);
    }
}

TEST_F(Handshakes, WhereCommandInfoIsDeniedTheCommandAskedForIsTriedWithoutArguments) {
    const struct {
        Cas wanted;
        Lines tries;
    } table[] = {{Cas::delex, {"DELEX"}}, {Cas::delifeq, {"DELIFEQ"}}, {Cas::tair, {"CAD", "CAS"}}};
    for (const auto& [wanted, tries] : table) {
        endpoint = {.client_name = "", .cas = wanted};
        EXPECT_FALSE(play({error("NOPERM this user has no permissions to run the 'command|info' command")}));
        Lines said_now = said.take();
        said_now.erase(said_now.begin());
        EXPECT_EQ(said_now, tries);
        bool decided = false;
        for (std::size_t i = 0; i < tries.size(); ++i) decided = shake->take(error("ERR wrong number of arguments for 'delex' command"), said);
        EXPECT_TRUE(decided);
        EXPECT_EQ(shake->answer, Answer::yes);

        EXPECT_FALSE(play({error("NOPERM")}));
        EXPECT_TRUE(shake->take(error("ERR unknown command 'DELEX', with args beginning with: "), said));
        EXPECT_EQ(shake->error, Errc::unsupported);
        said.take();
    }
}

TEST_F(Handshakes, EndWithARefusedLogin) {
    endpoint.password = "pw";
    EXPECT_TRUE(play({error("WRONGPASS invalid username-password pair or user is disabled.")}));
    EXPECT_EQ(shake->answer, Answer::failed);
    EXPECT_EQ(shake->error, Errc::denied);
    EXPECT_EQ(shake->words, "WRONGPASS invalid username-password pair or user is disabled.");
    EXPECT_TRUE(play({error("LOADING Redis is loading the dataset in memory")}));
    EXPECT_EQ(shake->error, Errc::loading);
    EXPECT_TRUE(play({error("ERR something new")}));
    EXPECT_EQ(shake->error, Errc::denied);
}

TEST_F(Handshakes, NeverRepeatAPasswordThatTheServerQuotes) {
    endpoint.password = "tiger";
    EXPECT_TRUE(play({error("ERR unknown command 'AUTH', with args beginning with: 'tiger' ")}));
    EXPECT_EQ(shake->words.find("tiger"), std::string::npos) << shake->words;
}

TEST_F(Handshakes, EndWithADatabaseThatIsNotThere) {
    endpoint.database = 99;
    EXPECT_TRUE(play({error("ERR DB index is out of range")}));
    EXPECT_EQ(shake->error, Errc::invalid_argument);
    EXPECT_TRUE(play({error("NOAUTH Authentication required.")}));
    EXPECT_EQ(shake->error, Errc::denied);
}

TEST_F(Handshakes, GoOnWithoutAName) {
    EXPECT_TRUE(play({error("NOPERM this user has no permissions to run the 'client|setname' command"), abilities(false, false, false, false)}));
    EXPECT_EQ(shake->answer, Answer::yes);
}

TEST_F(Handshakes, EndWhereTheServerTurnsUsAway) {
    EXPECT_TRUE(play({error("DENIED Redis is running in protected mode")}));
    EXPECT_EQ(shake->error, Errc::denied);
    EXPECT_TRUE(play({error("ERR max number of clients reached")}));
    EXPECT_EQ(shake->error, Errc::unreachable);
}

TEST_F(Handshakes, LearnAnewWithEachConnection) {
    EXPECT_TRUE(play({ok(), abilities(true, false, false, false)}));
    EXPECT_EQ(dialect.current(), Cas::delex);
    EXPECT_TRUE(replay({ok(), abilities(false, false, false, false)}));
    EXPECT_EQ(dialect.current(), Cas::script);
    EXPECT_FALSE(dialect.confirmed());
    EXPECT_TRUE(dialect.may_use_script());
}

TEST_F(Handshakes, AskForNotificationsAndForTheServersIdentityWhereWanted) {
    redirect = 17;
    identify = true;
    EXPECT_TRUE(play({ok(), ok(), text("# Server\r\nrun_id:0123abcd\r\ntcp_port:6379\r\n"), abilities(false, false, false, false)}));
    EXPECT_EQ(said.take(), (Lines{"CLIENT SETNAME hiredlock", "CLIENT TRACKING ON REDIRECT 17 NOLOOP", "INFO server", ask_abilities}));
    EXPECT_TRUE(shake->is_tracking());
    EXPECT_EQ(shake->run_id(), "0123abcd");
}

TEST_F(Handshakes, GoOnWithoutNotificationsAndWithoutAnIdentity) {
    redirect = 17;
    identify = true;
    EXPECT_TRUE(play({ok(), error("ERR unknown subcommand 'TRACKING'"), error("NOPERM"), abilities(false, false, false, false)}));
    EXPECT_EQ(shake->answer, Answer::yes);
    EXPECT_FALSE(shake->is_tracking());
    EXPECT_EQ(shake->run_id(), "");
    EXPECT_TRUE(play({ok(), ok(), text("run_id"), abilities(false, false, false, false)}));
    EXPECT_EQ(shake->run_id(), "");
}

TEST(Subscriptions, LearnTheirClientsId) {
    Said said;
    Subscribe subscribe;
    subscribe.start(said);
    EXPECT_EQ(said.take(), (Lines{"CLIENT ID", "SUBSCRIBE __redis__:invalidate"}));
    EXPECT_FALSE(subscribe.take(number(42), said));
    EXPECT_TRUE(subscribe.take(array({text("subscribe"), text("__redis__:invalidate"), number(1)}), said));
    EXPECT_EQ(subscribe.answer, Answer::yes);
    EXPECT_EQ(subscribe.client_id, 42);
}

TEST(Subscriptions, EndWithBothAnswersWhereOneIsAnError) {
    Said said;
    Subscribe nameless;
    nameless.start(said);
    EXPECT_FALSE(nameless.take(error("ERR unknown subcommand 'ID'"), said));
    EXPECT_TRUE(nameless.take(array({text("subscribe"), text("__redis__:invalidate"), number(1)}), said));
    EXPECT_EQ(nameless.answer, Answer::failed);
    EXPECT_EQ(nameless.error, Errc::unsupported);
    Subscribe refused;
    refused.start(said);
    EXPECT_FALSE(refused.take(number(42), said));
    EXPECT_TRUE(refused.take(error("NOPERM this user has no permissions to access one of the channels"), said));
    EXPECT_EQ(refused.answer, Answer::failed);
    EXPECT_EQ(refused.error, Errc::denied);
}

TEST(Pings, AreAnsweredByText) {
    for (const Reply& reply : {text("PONG"), ok()}) {
        Said said;
        Ping ping;
        ping.start(said);
        EXPECT_EQ(said.take(), (Lines{"PING"}));
        EXPECT_TRUE(ping.take(reply, said));
        EXPECT_EQ(ping.answer, Answer::yes);
    }
    Said said;
    Ping ping;
    ping.start(said);
    EXPECT_TRUE(ping.take(error("NOAUTH Authentication required."), said));
    EXPECT_EQ(ping.answer, Answer::failed);
    EXPECT_EQ(ping.error, Errc::denied);
    Ping odd;
    EXPECT_TRUE(odd.take(number(1), said));
    EXPECT_EQ(odd.error, Errc::protocol);
}

}  // namespace
