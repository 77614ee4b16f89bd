// Errors by name: their messages, which of them may go away, and how text is quoted in them.
#include <hiredlock/error.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <system_error>
#include <vector>

using hiredlock::Errc;

namespace {

const std::vector<Errc> all = {Errc::invalid_argument, Errc::timed_out,      Errc::lost,           Errc::not_held,  Errc::unreachable, Errc::unknown_outcome,
                               Errc::denied,           Errc::read_only,      Errc::loading,        Errc::out_of_memory, Errc::disk_error, Errc::wrong_type,
                               Errc::not_replicated,   Errc::no_quorum,      Errc::unsupported,    Errc::protocol};

TEST(Errors, EachHasAMessageOfItsOwn) {
    std::set<std::string> messages;
    for (const Errc code : all) {
        const std::error_code error = code;
        EXPECT_TRUE(error) << "none of them is 0, which would be success";
        EXPECT_EQ(error, code);
        EXPECT_FALSE(error.message().empty());
        messages.insert(error.message());
    }
    EXPECT_EQ(messages.size(), all.size());
    EXPECT_FALSE(messages.contains(hiredlock::category().message(0)));
}

TEST(Errors, AValueThatIsNoneHasAMessageToo) {
    EXPECT_FALSE(hiredlock::category().message(0).empty());
    EXPECT_FALSE(hiredlock::category().message(-1).empty());
    EXPECT_EQ(hiredlock::category().message(static_cast<int>(all.size()) + 1), hiredlock::category().message(0)) << "the list above is complete";
}

TEST(Errors, BelongToOneCategory) {
    EXPECT_STREQ(hiredlock::category().name(), "hiredlock");
    EXPECT_EQ(&make_error_code(Errc::lost).category(), &hiredlock::category());
    EXPECT_NE(std::error_code(Errc::lost), std::error_code(static_cast<int>(Errc::lost), std::generic_category()));
}

TEST(Errors, SomeMayGoAwayByThemselves) {
    const std::set<Errc> transient = {Errc::timed_out, Errc::unreachable, Errc::unknown_outcome, Errc::read_only, Errc::loading, Errc::no_quorum};
    for (const Errc code : all) EXPECT_EQ(hiredlock::is_transient(code), transient.contains(code)) << std::error_code{code}.message();
    EXPECT_FALSE(hiredlock::is_transient({}));
    for (int value = 1; value < 40; ++value) {
        EXPECT_FALSE(hiredlock::is_transient({value, std::generic_category()}));
        EXPECT_FALSE(hiredlock::is_transient({value, std::system_category()}));
    }
    static_assert(noexcept(hiredlock::is_transient({})));
}

TEST(Errors, AreSystemErrorsThatSayWhatHappened) {
    try {
        throw hiredlock::Error{Errc::denied, "hiredlock: lock 'k': server says NOPERM"};
    } catch (const std::system_error& e) {
        EXPECT_EQ(e.code(), Errc::denied);
        EXPECT_NE(std::string{e.what()}.find("server says NOPERM"), std::string::npos);
    }
}

TEST(Quoting, ShowsTextInQuotes) {
    EXPECT_EQ(hiredlock::detail::in_quotes(""), "''");
    EXPECT_EQ(hiredlock::detail::in_quotes("lock:nightly report"), "'lock:nightly report'");
}

TEST(Quoting, EscapesWhatDoesNotPrint) {
    using namespace std::string_literals;
    EXPECT_EQ(hiredlock::detail::in_quotes("a\r\nb"), "'a\\x0d\\x0ab'");
    EXPECT_EQ(hiredlock::detail::in_quotes("a\0b"s), "'a\\x00b'");
    EXPECT_EQ(hiredlock::detail::in_quotes("\xff\x7f\x1b["), "'\\xff\\x7f\\x1b['");
    EXPECT_EQ(hiredlock::detail::in_quotes("a\\b"), "'a\\x5cb'") << "so that an escape can be told from text";
    EXPECT_EQ(hiredlock::detail::in_quotes("%d%n"), "'%d%n'");
}

TEST(Quoting, CutsLongText) {
    EXPECT_EQ(hiredlock::detail::in_quotes(std::string(80, 'x')), "'" + std::string(80, 'x') + "'");
    EXPECT_EQ(hiredlock::detail::in_quotes(std::string(81, 'x')), "'" + std::string(80, 'x') + "...'");
    EXPECT_LT(hiredlock::detail::in_quotes(std::string(1U << 20U, '\0')).size(), 400U);
}

}  // namespace
