//! The macros: names and ids of messages, shapes, and actors made from one block.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use odeon::{
    Actor, AskError, Context, Down, Failure, Message, Reason, Ref, Registered, Shape, Supervision,
    System,
};

use crate::eventually;

/// Versions of one message, each of which must have its own id.
mod versions {
    macro_rules! version {
        ($module:ident, $reply:ty, $($body:tt)*) => {
            pub mod $module {
                #[odeon::message(reply = $reply)]
                $($body)*
            }
        };
    }
    version!(
        base,
        u64,
        pub struct Add {
            n: u32,
            m: u64,
        }
    );
    version!(
        field_type,
        u64,
        pub struct Add {
            n: u64,
            m: u64,
        }
    );
    version!(
        field_order,
        u64,
        pub struct Add {
            m: u64,
            n: u32,
        }
    );
    version!(
        field_name,
        u64,
        pub struct Add {
            n: u32,
            o: u64,
        }
    );
    version!(
        fewer_fields,
        u64,
        pub struct Add {
            n: u32,
        }
    );
    version!(tuple, u64, pub struct Add(u32, u64););
    version!(unit, u64, pub struct Add;);
    version!(
        reply,
        u32,
        pub struct Add {
            n: u32,
            m: u64,
        }
    );
    version!(
        type_name,
        u64,
        pub struct Sum {
            n: u32,
            m: u64,
        }
    );
    version!(
        variants,
        u64,
        pub enum Add {
            N(u32),
            M(u64),
        }
    );
    version!(
        variant_order,
        u64,
        pub enum Add {
            M(u64),
            N(u32),
        }
    );
    version!(
        variant_name,
        u64,
        pub enum Add {
            N(u32),
            O(u64),
        }
    );
    version!(
        variant_field,
        u64,
        pub enum Add {
            N(u32),
            M(u32),
        }
    );

    pub mod same {
        #[odeon::message(reply = u64)]
        pub struct Add {
            n: u32,
            m: u64,
        }
    }
}

/// SEMANTICS 13.
#[test]
fn a_method_id_differs_when_anything_on_the_wire_does() {
    let ids = [
        versions::base::Add::METHOD,
        versions::field_type::Add::METHOD,
        versions::field_order::Add::METHOD,
        versions::field_name::Add::METHOD,
        versions::fewer_fields::Add::METHOD,
        versions::tuple::Add::METHOD,
        versions::unit::Add::METHOD,
        versions::reply::Add::METHOD,
        versions::type_name::Sum::METHOD,
        versions::variants::Add::METHOD,
        versions::variant_order::Add::METHOD,
        versions::variant_name::Add::METHOD,
        versions::variant_field::Add::METHOD,
    ];
    let distinct: HashSet<u64> = ids.into_iter().collect();
    assert_eq!(distinct.len(), ids.len());
    assert_eq!(versions::base::Add::METHOD, versions::same::Add::METHOD);
}

#[odeon::message]
struct Plain;

#[odeon::message(name = "test.named", reply = Vec<u8>)]
#[derive(Debug, Clone, PartialEq)]
enum Named {
    One,
    Two { bytes: Vec<u8> },
}

#[odeon::message(reply = T)]
struct Generic<T> {
    value: T,
}

#[derive(Shape)]
struct Skipping {
    _kept: u8,
    #[serde(default, skip)]
    _cache: Option<SystemTime>,
}

#[derive(Shape)]
#[allow(dead_code, reason = "only its shape counts")]
struct Bounded<'a, T: Copy, const N: usize>
where
    [T; N]: Shape,
    &'a T: Copy,
{
    r#type: [T; N],
    #[serde(skip)]
    borrowed: &'a T,
}

#[test]
fn names_and_replies_have_defaults() {
    fn reply<M: Message<Reply = R>, R>() -> &'static str {
        M::NAME
    }
    assert_eq!(reply::<Plain, ()>(), "Plain");
    assert_eq!(reply::<Named, Vec<u8>>(), "test.named");
    assert_eq!(reply::<Generic<u32>, u32>(), "Generic");
    assert_ne!(Generic::<u32>::METHOD, Generic::<u64>::METHOD);
    assert_ne!(Bounded::<u8, 2>::SHAPE, Bounded::<u8, 3>::SHAPE);
}

#[test]
fn a_skipped_field_does_not_count() {
    mod bare {
        #[derive(odeon::Shape)]
        pub(super) struct Skipping {
            _kept: u8,
        }
    }
    assert_eq!(Skipping::SHAPE, bare::Skipping::SHAPE);
}

/// The block uses what the macro offers: every kind of handler, every way to take the context.
struct Library {
    books: Vec<String>,
    notices: Vec<Reason>,
    farewell: Option<Ref<Register>>,
}

#[odeon::actor(name = "test.Library")]
impl Library {
    const LONGEST: usize = 40;

    async fn start(
        first: (String, Option<Ref<Register>>),
        cx: &mut Context<Self>,
    ) -> Result<Self, Failure> {
        if first.0.is_empty() {
            return Err(Failure::error(format!("{} has no book", cx.me().id())));
        }
        Ok(Self {
            books: vec![first.0],
            notices: vec![],
            farewell: first.1,
        })
    }

    async fn stop(self, reason: &Reason) {
        if let Some(register) = self.farewell {
            let note = format!("{} books: {reason}", self.books.len());
            register.ask(Note { text: note }).await.unwrap();
        }
    }

    fn supervision() -> Supervision {
        Supervision::one_for_all()
    }

    /// Adds a book, and answers how many there are.
    #[handler]
    pub async fn add_book(
        &mut self,
        /// The title on the cover.
        title: String,
        mut copies: u8,
    ) -> Result<u64, String> {
        self.check(&title)?;
        while copies > 0 {
            self.books.push(title.clone());
            copies -= 1;
        }
        Ok(self.books.len() as u64)
    }

    #[handler]
    fn count(&self) -> u64 {
        self.books.len() as u64
    }

    #[handler]
    async fn whoami(&mut self, cx: &mut Context<Self>) -> (Ref<Self>, u32) {
        (cx.me(), cx.incarnation())
    }

    /// The context may stand anywhere.
    #[handler(name = "test.watch")]
    async fn watch(&mut self, cx: &mut Context<Self>, other: Ref<Register>) {
        cx.watch(other);
    }

    #[handler(message = Named)]
    async fn named(&mut self, named: Named) -> Vec<u8> {
        match named {
            Named::One => vec![1],
            Named::Two { bytes } => bytes,
        }
    }

    #[handler(message = Down)]
    fn down(&mut self, Down { reason, .. }: Down) {
        self.notices.push(reason);
    }

    #[handler]
    fn notices(&self) -> u64 {
        self.notices.len() as u64
    }

    fn check(&self, title: &str) -> Result<(), String> {
        if title.len() > Self::LONGEST {
            Err(title.to_owned())
        } else {
            Ok(())
        }
    }
}

#[derive(Default)]
struct Register {
    notes: Vec<String>,
}

/// As short as an actor gets, and with handlers called like the methods of its life.
#[odeon::actor(name = "test.Register")]
impl Register {
    fn start() -> Self {
        Self::default()
    }

    #[handler]
    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    #[handler]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    #[handler]
    fn stop(&mut self, cx: &mut Context<Self>) {
        cx.stop();
    }
}

struct Idle;

#[odeon::actor(name = "test.Idle")]
impl Idle {
    async fn start(_: &mut Context<Self>) -> Idle {
        Self
    }
}

#[test]
fn a_block_says_all_of_its_actor() {
    assert_eq!(Library::NAME, "test.Library");
    assert_eq!(
        <Library as Actor>::supervision(),
        Supervision::one_for_all()
    );
    assert_eq!(<Register as Actor>::supervision(), Supervision::default());
    assert_eq!(Library::actor_type().name(), "test.Library");
    assert_eq!(AddBook::NAME, "AddBook");
    assert_eq!(Watch::NAME, "test.watch");
    let message = AddBook {
        title: "Dune".to_owned(),
        copies: 2,
    };
    assert_eq!(
        format!("{message:?}"),
        r#"AddBook { title: "Dune", copies: 2 }"#
    );
    let methods = format!("{:?}", Library::actor_type());
    for name in [
        "AddBook",
        "Count",
        "Whoami",
        "test.watch",
        "test.named",
        "Notices",
    ] {
        assert!(methods.contains(&format!("{name}#")), "{name} in {methods}");
    }
}

#[tokio::test]
async fn an_actor_made_from_a_block_lives_and_answers() {
    let system = System::local().await.unwrap();
    let register = system.spawn::<Register>(()).await.unwrap();
    let first = ("Emma".to_owned(), Some(register));
    let library = system.spawn::<Library>(first).await.unwrap();

    let add = AddBook {
        title: "Dune".to_owned(),
        copies: 2,
    };
    assert_eq!(library.ask(add).await.unwrap(), Ok(3));
    let endless = "x".repeat(Library::LONGEST + 1);
    let refused = library
        .ask(AddBook {
            title: endless.clone(),
            copies: 1,
        })
        .await
        .unwrap();
    assert_eq!(refused, Err(endless));
    assert_eq!(library.ask(Count).await.unwrap(), 3);
    assert_eq!(library.ask(Whoami).await.unwrap(), (library, 1));
    assert_eq!(library.ask(Named::One).await.unwrap(), [1]);
    let two = library
        .narrow::<Named>()
        .ask(Named::Two { bytes: vec![7, 8] });
    assert_eq!(two.await.unwrap(), [7, 8]);

    library.stop().await.unwrap();
    let notes = register.ask(Notes).await.unwrap();
    assert_eq!(notes, [format!("3 books: {}", Reason::Stopped)]);
    system.shutdown().await;
}

#[tokio::test]
async fn a_handler_takes_messages_of_the_runtime() {
    let system = System::local().await.unwrap();
    let register = system.spawn::<Register>(()).await.unwrap();
    let library = system
        .spawn::<Library>(("Emma".to_owned(), None))
        .await
        .unwrap();
    library.ask(Watch { other: register }).await.unwrap();
    register.ask(Stop).await.unwrap();
    register.down().await;
    let noticed = async || library.ask(Notices).await.unwrap() > 0;
    eventually("a notice", noticed).await;
    system.shutdown().await;
}

#[tokio::test]
async fn a_start_may_fail_or_need_nothing() {
    let system = System::local().await.unwrap();
    let idle = system.spawn::<Idle>(()).await.unwrap();
    idle.stop().await.unwrap();
    let failed = system
        .spawn::<Library>((String::new(), None))
        .start()
        .unwrap();
    let error = failed.ask(Count).await.unwrap_err();
    assert!(
        matches!(error, AskError::Dead(_) | AskError::Died(_)),
        "{error:?}"
    );
    system.shutdown().await;
}

/// An actor that is saved as it is, with fields whose types the macros have to look at.
#[odeon::wire]
#[derive(Clone, PartialEq, Debug)]
struct Shelf {
    boards: HashMap<String, Vec<Board>>,
    built: SystemTime,
}

/// A type that contains itself, by way of another one.
#[odeon::wire]
#[derive(Clone, PartialEq, Debug)]
enum Board {
    Empty,
    Split(Box<[Half; 2]>),
}

#[odeon::wire]
#[derive(Clone, PartialEq, Debug)]
struct Half {
    #[shape(name = "test.Board")]
    rest: Option<Box<Board>>,
    width: Duration,
}

#[odeon::actor(name = "test.Shelf")]
impl Shelf {
    fn start(saved: Self) -> Self {
        saved
    }

    #[odeon::handler]
    fn put_board(&mut self, on: String, board: Board) -> std::io::Result<Self> {
        self.boards.entry(on).or_default().push(board);
        Ok(self.clone())
    }
}

#[tokio::test]
async fn an_actor_is_saved_as_the_value_that_it_is() {
    let half = |rest| Half {
        rest,
        width: Duration::from_secs(1),
    };
    let board = Board::Split(Box::new([half(None), half(Some(Box::new(Board::Empty)))]));
    let mut expected = Shelf {
        boards: HashMap::new(),
        built: SystemTime::UNIX_EPOCH,
    };
    let system = System::local().await.unwrap();
    let shelf = system.spawn::<Shelf>(expected.clone()).await.unwrap();
    let put = PutBoard {
        on: "left".to_owned(),
        board: board.clone(),
    };
    assert!(format!("{:?}", put.clone()).starts_with("PutBoard { on: \"left\", board: Split("));
    expected.boards.insert("left".to_owned(), vec![board]);
    assert_eq!(shelf.ask(put).await.unwrap().unwrap(), expected);
    system.shutdown().await;
}
