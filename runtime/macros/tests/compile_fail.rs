//! Common mistakes, and the messages that the compiler has for them.

// Here and not with the tests of the runtime: the mistakes are built beside all that their package depends on, anew
// and in a folder of their own, and from here that is the runtime without its features.
#[test]
fn common_mistakes_are_explained() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
