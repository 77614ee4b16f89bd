// The cluster slot of a key, and a fencing key beside a lock's key in the same slot.
#include <hiredlock/fence.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

using namespace hiredlock::detail;

namespace {

TEST(Slots, AreWhatTheClusterSpecificationSays) {
    EXPECT_EQ(cluster_slot("123456789"), 12739U);
    EXPECT_EQ(cluster_slot(""), 0U);
    EXPECT_EQ(cluster_slot("foo"), 12182U);
    EXPECT_EQ(cluster_slot("bar"), 5061U);
    EXPECT_EQ(cluster_slot("hello"), 866U);
}

TEST(Slots, OfAKeyWithATagAreTheTags) {
    EXPECT_EQ(cluster_slot("{user1000}.following"), cluster_slot("{user1000}.followers"));
    EXPECT_EQ(cluster_slot("foo{bar}baz"), cluster_slot("bar"));
    EXPECT_EQ(cluster_slot("foo{{bar}}zap"), cluster_slot("{bar"));
    EXPECT_EQ(cluster_slot("foo{bar}{zap}"), cluster_slot("bar"));
    EXPECT_NE(cluster_slot("foo{}{bar}"), cluster_slot("bar")) << "an empty first tag means the whole key";
    EXPECT_NE(cluster_slot("foo{bar"), cluster_slot("bar"));
    EXPECT_NE(cluster_slot("foo}bar{x"), cluster_slot("x"));
    EXPECT_EQ(cluster_slot("}{bar}"), cluster_slot("bar"));
}

TEST(FencingKeys, LieBesideTheLocksKeyInTheSameSlot) {
    using namespace std::string_literals;
    std::vector<std::string> keys = {"a", "x{y}z", "{}", "{a", "a}b", "}", "{}x{y}", "{{}}", "{}}", "}{", "a{}b", "\0\xff\r\n"s, "{\0}"s, std::string(1000, 'k'), "}" + std::string(1000, 'k')};
    // And every short key of the bytes that matter.
    for (const char* alphabet = "{}a"; const char one : std::string{alphabet})
        for (const char two : std::string{alphabet})
            for (const char three : std::string{alphabet})
                for (const char four : std::string{alphabet}) keys.push_back({one, two, three, four});
    for (const std::string& key : keys) {
        const std::string fence = fence_key_beside(key);
        EXPECT_EQ(cluster_slot(fence), cluster_slot(key)) << key << " and " << fence;
        EXPECT_NE(fence, key);
        EXPECT_NE(fence.find(key), std::string::npos) << "a reader sees whose it is";
        EXPECT_EQ(fence, fence_key_beside(key)) << "always the same one";
    }
}

TEST(FencingKeys, OfKeysThatHaveNoTagAreTheirOwn) {
    std::set<std::string> fences;
    for (const char* key : {"a", "b", "{}", "}", "a}b", "{}x{y}", "{a"}) fences.insert(fence_key_beside(key));
    EXPECT_EQ(fences.size(), 7U);
}

TEST(FencingKeys, CanBeMadeForEverySlot) {
    std::set<unsigned> reached;
    for (unsigned n = 0; reached.size() < 16384 && n < 1'000'000; ++n) reached.insert(cluster_slot(std::to_string(n)));
    EXPECT_EQ(reached.size(), 16384U) << "so the search for a short tag always ends";
}

TEST(FencingKeys, AreWhereThePolicySays) {
    const hiredlock::fence::Counter beside{}, named{.key = "numbers"};
    EXPECT_EQ(beside.key_for("k"), "{k}:fence");
    EXPECT_EQ(beside.key_for("{tag}k"), "{tag}k:fence");
    EXPECT_EQ(named.key_for("k"), "numbers");
    EXPECT_EQ(hiredlock::fence::None{}.key_for("k"), "");
}

}  // namespace
