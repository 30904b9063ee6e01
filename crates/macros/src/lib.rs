//! The attribute of simulated tests. It reads tokens by hand: a name, a list of `name = value`, and a function that is
//! left as it is.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// A test that runs on simulated NICs, once for each seed.
///
/// The function gets the simulation and adds its parties. Each setting is a method of `ubiverbs::simulation::Builder`
/// with the same name: `loss`, `reordering`, `duplication`, `corruption`, `delay`, `jitter`, `bandwidth`, `seed`,
/// `seeds`, `time_limit`.
///
/// ```ignore
/// #[ubiverbs::simulated_test(loss = 0.01, seeds = 100)]
/// fn a_message_arrives(simulation: &mut Simulation) {
///     simulation.party("server", server());
///     simulation.party("client", client());
/// }
/// ```
///
/// A run that fails prints its seed; `UBIVERBS_SEED` runs that one alone, `UBIVERBS_SEEDS` changes how many there are.
#[proc_macro_attribute]
pub fn simulated_test(settings: TokenStream, item: TokenStream) -> TokenStream {
    match expand(settings, item) {
        Ok(test) => test,
        Err((what, at)) => complaint(&what, at),
    }
}

/// What is wrong, and where.
type Wrong = (String, Span);

fn expand(settings: TokenStream, item: TokenStream) -> Result<TokenStream, Wrong> {
    let builder = builder(settings)?;
    let (attributes, function) = split(item);
    let name = name_of(&function)?;
    // fn name() { fn name(simulation) {...}  builder.check(name); }: the inner function hides the outer one.
    let mut body = function;
    body.extend(parse("::ubiverbs::simulation::Simulation::builder()"));
    body.extend(builder);
    body.extend(parse(".check"));
    body.extend([parenthesized([TokenTree::Ident(name.clone())].into_iter().collect())]);
    let mut test = attributes;
    test.extend(parse("#[::core::prelude::v1::test] fn"));
    test.extend([
        TokenTree::Ident(name),
        parenthesized(TokenStream::new()),
        TokenTree::Group(Group::new(Delimiter::Brace, body)),
    ]);
    Ok(test)
}

fn parse(text: &str) -> TokenStream {
    text.parse().unwrap_or_default()
}

fn parenthesized(inside: TokenStream) -> TokenTree {
    TokenTree::Group(Group::new(Delimiter::Parenthesis, inside))
}

/// `loss = 0.01, seeds = 100` becomes `.loss(0.01).seeds(100)`.
fn builder(settings: TokenStream) -> Result<TokenStream, Wrong> {
    let mut calls = TokenStream::new();
    let mut tokens = settings.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(name) = token else {
            return Err(("expected the name of a setting, as in `loss = 0.01`".into(), token.span()));
        };
        match tokens.next() {
            Some(TokenTree::Punct(sign)) if sign.as_char() == '=' => {}
            _ => return Err((format!("expected `{name} = value`"), name.span())),
        }
        let mut value = TokenStream::new();
        while let Some(token) = tokens.next_if(|token| !is_comma(token)) {
            value.extend([token]);
        }
        if value.is_empty() {
            return Err((format!("expected a value after `{name} =`"), name.span()));
        }
        tokens.next();
        calls.extend([TokenTree::Punct(Punct::new('.', Spacing::Alone)), TokenTree::Ident(name), parenthesized(value)]);
    }
    Ok(calls)
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(sign) if sign.as_char() == ',')
}

/// The attributes of an item, which are the test's, and the rest.
fn split(item: TokenStream) -> (TokenStream, TokenStream) {
    let mut attributes = TokenStream::new();
    let mut tokens = item.into_iter().peekable();
    while let Some(sign) = tokens.next_if(|token| matches!(token, TokenTree::Punct(sign) if sign.as_char() == '#')) {
        attributes.extend([sign]);
        attributes.extend(tokens.next());
    }
    (attributes, tokens.collect())
}

/// The name after `fn`.
fn name_of(function: &TokenStream) -> Result<Ident, Wrong> {
    let mut tokens = function.clone().into_iter();
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Ident(word) if word.to_string() == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.next() {
                    return Ok(name);
                }
            }
            TokenTree::Ident(word) if word.to_string() == "async" => {
                let what = "the function arranges the parties and is not async itself; its parties are";
                return Err((what.into(), word.span()));
            }
            _ => {}
        }
    }
    Err(("`simulated_test` is for functions".into(), Span::call_site()))
}

/// `compile_error!` where the mistake is.
fn complaint(what: &str, at: Span) -> TokenStream {
    let stream = parse(&format!("::core::compile_error! {{ {what:?} }}"));
    stream
        .into_iter()
        .map(|mut token| {
            token.set_span(at);
            token
        })
        .collect()
}
