//! What the compiler tells who makes a common mistake.

#[test]
fn common_mistakes_are_explained() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
