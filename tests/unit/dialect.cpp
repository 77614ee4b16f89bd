// Which compare-and-delete form a connection uses, and what it turns to.
#include <hiredlock/dialect.hpp>

#include <gtest/gtest.h>

#include <set>

using hiredlock::Cas;
using hiredlock::detail::Dialect;

namespace {

TEST(Dialects, PreferTheNativeFormAndKeepTheScriptAsTheSecond) {
    const struct {
        bool delex, delifeq, tair;
        Cas first;
    } table[] = {
        {true, true, true, Cas::delex}, {true, false, false, Cas::delex},   {false, true, true, Cas::delifeq},
        {false, true, false, Cas::delifeq}, {false, false, true, Cas::tair},
    };
    for (const auto& row : table) {
        Dialect dialect{Cas::automatic};
        dialect.found(row.delex, row.delifeq, row.tair);
        EXPECT_EQ(dialect.current(), row.first);
        EXPECT_TRUE(dialect.next());
        EXPECT_EQ(dialect.current(), Cas::script);
        EXPECT_FALSE(dialect.next());
        EXPECT_EQ(dialect.current(), row.first);
    }
}

TEST(Dialects, WithoutANativeFormHaveTheScriptOnly) {
    Dialect dialect{Cas::automatic};
    dialect.found(false, false, false);
    EXPECT_EQ(dialect.current(), Cas::script);
    EXPECT_FALSE(dialect.next());
    EXPECT_EQ(dialect.current(), Cas::script);
}

TEST(Dialects, ThatKnowNothingTryEveryFormOnce) {
    Dialect dialect{Cas::automatic};
    EXPECT_EQ(dialect.current(), Cas::script);
    std::set<Cas> seen{dialect.current()};
    while (dialect.next()) EXPECT_TRUE(seen.insert(dialect.current()).second);
    EXPECT_EQ(seen.size(), 4U);
    EXPECT_FALSE(seen.contains(Cas::automatic));
}

TEST(Dialects, AskedForOneFormHaveNoOther) {
    for (const Cas form : {Cas::script, Cas::tair, Cas::delifeq, Cas::delex}) {
        Dialect dialect{form};
        dialect.found(true, true, true);
        EXPECT_EQ(dialect.current(), form);
        EXPECT_FALSE(dialect.next());
        EXPECT_EQ(dialect.current(), form);
        EXPECT_EQ(dialect.may_use_script(), form == Cas::script);
    }
}

}  // namespace
