//! Two hundred jobs of random demands, priorities and lengths on three nodes, for many seeds: all end,
//! nobody starves, and the bottleneck is nine tenths as full as the best packing makes it that is known.
//!
//! That packing keeps no order and no promise: whatever fits begins, the largest first, of whichever
//! resource fills the cluster most; or who came first. What no packing could pass is told, too: all
//! nodes as one, and jobs cut as one likes. Where two resources are as scarce as each other, that packing
//! fills the one at the cost of the other, and the leader may stay further behind it in the one: of a
//! thousand seeds seven do, the worst with 0.83. The mean is 0.97, and 0.94 of what no packing passes.
//!
//! `ODEON_SEED=n` plays one seed again, `ODEON_SEEDS` so many.

use super::*;

const NODES: [&str; 3] = ["a", "b", "c"];
const CPUS: u32 = 16;
const MEMORY: u64 = 128;
const DEVICES: u32 = 8;
const JOBS: usize = 200;

/// Small and good enough to draw jobs with.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }

    fn job(&mut self) -> Drawn {
        let share = Allotment {
            cpu_milli: self.pick(&[250, 500, 1000, 1000, 2000, 2000, 4000, 6000]),
            memory_bytes: self.pick(&[1, 2, 4, 8, 16, 24]) * GIB,
            devices: self.pick(&[0, 0, 1, 1, 1, 2, 2, 4]),
            device_memory_bytes: 0,
        };
        let asked = match self.roll(4) {
            0 => JobResources::of_ranks(1 + self.roll(3) as u32, share),
            _ => JobResources::of_driver(share),
        };
        let length = self.pick(&[5, 10, 20, 40, 80, 160, 300]) + self.roll(20);
        // People do not know how long their jobs take; some do not say.
        let guess = length + self.roll(length + 1);
        Drawn {
            asked,
            priority: self.pick(&[0, 0, 0, 0, 1, 1, 5]),
            length,
            limit: (self.roll(10) > 0).then_some(guess),
        }
    }
}

struct Drawn {
    asked: JobResources,
    priority: i32,
    /// In seconds.
    length: u64,
    limit: Option<u64>,
}

/// The three quantities together.
type Sum = [f64; 3];

fn total(asked: &JobResources) -> Sum {
    let times = |it: Allotment, n: f64| {
        let [cpu, memory] = [it.cpu_milli, it.memory_bytes].map(|q| q as f64 * n);
        [cpu, memory, f64::from(it.devices) * n]
    };
    let (driver, ranks) = (
        times(asked.driver, 1.0),
        times(asked.rank, f64::from(asked.ranks)),
    );
    std::array::from_fn(|i| driver[i] + ranks[i])
}

fn capacity() -> Sum {
    let nodes = NODES.len() as f64;
    [
        f64::from(CPUS) * 1000.0 * nodes,
        (MEMORY * GIB) as f64 * nodes,
        f64::from(DEVICES) * nodes,
    ]
}

/// The most of a resource that any choice among these demands takes, were the nodes one and jobs cut
/// as one likes: for each other resource the best by what they take of this one for that (G. Dantzig's
/// bound of the knapsack, 1957), and of these the least.
fn best(demands: &[Sum], i: usize) -> f64 {
    let of = |j: usize| {
        let mut sorted: Vec<&Sum> = demands.iter().filter(|it| it[i] > 0.0).collect();
        sorted.sort_by(|a, b| (a[j] * b[i]).total_cmp(&(b[j] * a[i])));
        let (mut taken, mut room) = (0.0, capacity()[j]);
        for it in sorted {
            let part = if it[j] <= room { 1.0 } else { room / it[j] };
            taken += it[i] * part;
            room -= it[j] * part;
        }
        taken
    };
    (0..3).map(of).fold(f64::MAX, f64::min)
}

/// The order in which jobs are packed.
#[derive(Clone, Copy, Debug)]
enum Packing {
    /// As the leader does it.
    Leader,
    /// Whatever fits, those first that take most of this resource.
    Largest(usize),
    /// Whatever fits, who came first.
    Oldest,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Ends(JobId, u32),
    Arrives(usize),
    Dies(&'static str),
    Rises(&'static str),
}

/// The course of one seed.
struct Course {
    packing: Packing,
    world: World,
    jobs: Vec<Drawn>,
    of: BTreeMap<JobId, usize>,
    events: BinaryHeap<Reverse<(u64, What)>>,
    /// By when each job is to have begun that was first in line.
    promised: BTreeMap<JobId, Unix>,
    /// Reserved and possible, summed over time, until the last that came has its place.
    used: Sum,
    possible: Sum,
    time: f64,
    kept: usize,
}

impl Course {
    fn new(seed: u64, packing: Packing) -> Self {
        let mut dice = Dice(seed.wrapping_mul(77).wrapping_add(1));
        let mut world = World::default();
        for name in NODES {
            world.up(name, 1, CPUS, MEMORY, DEVICES);
        }
        let jobs: Vec<Drawn> = (0..JOBS).map(|_| dice.job()).collect();
        let mut events = BinaryHeap::new();
        let mut at = 0;
        for n in 0..JOBS {
            at += dice.roll(8_000);
            events.push(Reverse((at, What::Arrives(n))));
        }
        Self {
            packing,
            world,
            jobs,
            of: BTreeMap::new(),
            events,
            promised: BTreeMap::new(),
            used: [0.0; 3],
            possible: [0.0; 3],
            time: 0.0,
            kept: 0,
        }
    }

    /// Plays it to its end.
    fn play(&mut self) {
        while let Some(Reverse((at, what))) = self.events.pop() {
            self.pass(at);
            self.happens(what);
            // What comes at the same time is known at the same time.
            if self
                .events
                .peek()
                .is_some_and(|Reverse((next, _))| *next == at)
            {
                continue;
            }
            let begun = match self.packing {
                Packing::Leader => self.world.look(),
                _ => self.pack(),
            };
            for job in begun {
                self.begins(job);
            }
            if matches!(self.packing, Packing::Leader) {
                self.promises();
            }
        }
    }

    /// Begins whatever fits.
    fn pack(&mut self) -> Vec<JobId> {
        let tables = self.world.tables.clone();
        let waits = |job: &&Job| job.attempt().is_none();
        let mut jobs: Vec<&Job> = tables.living_jobs().filter(waits).collect();
        if let Packing::Largest(i) = self.packing {
            let size = |job: &Job| total(&job.spec.resources)[i];
            jobs.sort_by(|a, b| size(b).total_cmp(&size(a)));
        }
        let mut room = Room::of(&tables, &BTreeSet::new(), Unix(self.world.now));
        let mut begun = vec![];
        for job in jobs {
            // Nobody is promised anything.
            let demands = job.spec.resources.demands(job);
            if !may_fit(&room.view, &demands) {
                continue;
            }
            if let Ok(plan) = solve(&room.view, &demands) {
                let reserved = room.grant(job, &plan);
                self.world.assign(job.id, reserved);
                begun.push(job.id);
            }
        }
        begun
    }

    /// Time passes until `at`, with what is reserved now, and what could be with all that are here.
    fn pass(&mut self, at: u64) {
        let time = (at - self.world.now) as f64;
        let living = self.world.tables.living_jobs();
        let (mut used, mut here) = ([0.0; 3], [0.0; 3]);
        for job in living {
            let total = total(&job.spec.resources);
            for i in 0..3 {
                here[i] += total[i];
                used[i] += if job.attempt().is_some() {
                    total[i]
                } else {
                    0.0
                };
            }
        }
        let all_came = self.of.len() == JOBS;
        let last = self.world.tables.jobs.get(&JobId(JOBS as u64));
        let waits = last.is_some_and(|job| job.tries == 0);
        if !all_came || waits {
            self.time += time;
            let demands = self.world.tables.living_jobs();
            let demands: Vec<Sum> = demands.map(|job| total(&job.spec.resources)).collect();
            for i in 0..3 {
                self.used[i] += used[i] * time;
                self.possible[i] += best(&demands, i).min(here[i]) * time;
            }
        }
        self.world.now = at;
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Arrives(n) => {
                let Drawn {
                    asked,
                    priority,
                    limit,
                    ..
                } = self.jobs[n];
                let job = self.world.submit(asked, priority, limit);
                self.of.insert(job, n);
                // Who is dearer may come before those that were promised something.
                let rank = |id: &JobId| (Reverse(self.world.tables.jobs[id].spec.priority), *id);
                self.promised.retain(|known, _| rank(known) < rank(&job));
            }
            What::Ends(job, attempt) => {
                let present = self.world.tables.jobs[&job].attempt();
                if present.is_some_and(|present| present.number == attempt) {
                    self.world.end(job);
                }
            }
            What::Dies(node) => {
                self.world.lose(node);
                self.promised.clear();
            }
            // Who could not run on the rest may come before those that were promised something.
            What::Rises(node) => {
                self.promised.clear();
                self.world.up(node, 2, CPUS, MEMORY, DEVICES);
            }
        }
    }

    fn begins(&mut self, job: JobId) {
        let drawn = &self.jobs[self.of[&job]];
        let attempt = self.world.tables.jobs[&job].tries;
        let ends = self.world.now + drawn.length * 1000;
        self.events.push(Reverse((ends, What::Ends(job, attempt))));
        if let Some(by) = self.promised.remove(&job) {
            let now = Unix(self.world.now);
            assert!(now <= by, "{job} was to begin by {by}, and did at {now}");
            self.kept += 1;
        }
    }

    /// Whoever is first keeps the earliest time that it was promised.
    fn promises(&mut self) {
        if let Some((job, at)) = self.world.promised()
            && at != NEVER
        {
            let known = self.promised.entry(job).or_insert(at);
            *known = at.min(*known);
        }
    }

    /// The bottleneck: the resource of which all jobs together want most, for as long as they take.
    fn bottleneck(&self) -> usize {
        let work = |i: usize| {
            let of = |job: &Drawn| total(&job.asked)[i] * job.length as f64;
            self.jobs.iter().map(of).sum::<f64>() / capacity()[i]
        };
        let most = (0..3).max_by(|a, b| work(*a).total_cmp(&work(*b)));
        most.expect("there are three")
    }

    /// The share of a resource that was reserved over the time.
    fn share(&self, i: usize) -> f64 {
        self.used[i] / (capacity()[i] * self.time)
    }

    fn all_are_over(&self) {
        for job in self.world.tables.jobs.values() {
            assert_eq!(job.word(), "succeeded", "{}", job.id);
        }
    }
}

fn seeds() -> Vec<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|n| n.parse().expect("a number"))
    };
    match (number("ODEON_SEED"), number("ODEON_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (0..count.unwrap_or(100)).collect(),
    }
}

/// SEMANTICS 115.
#[test]
fn two_hundred_jobs_end_and_leave_little_room_unused() {
    let (mut least, mut sum, mut fluid, mut kept) = (f64::MAX, 0.0, 0.0, 0);
    let mut full = 0;
    let seeds = seeds();
    for seed in &seeds {
        let mut course = Course::new(*seed, Packing::Leader);
        course.play();
        course.all_are_over();
        let i = course.bottleneck();
        let best = [Packing::Largest(i), Packing::Oldest].map(|packing| {
            let mut other = Course::new(*seed, packing);
            other.play();
            other.share(i)
        });
        let best = best.into_iter().fold(0.0, f64::max);
        let (own, bound) = (
            course.share(i),
            course.possible[i] / capacity()[i] / course.time,
        );
        println!("seed {seed}: resource {i}: {own:.3} of {best:.3}, below {bound:.3}");
        least = least.min(own / best);
        full += usize::from(own >= 0.9 * best);
        (sum, fluid) = (sum + own / best, fluid + own / bound);
        kept += course.kept;
    }
    let count = seeds.len() as f64;
    println!(
        "of the best packing: least {least:.3}, mean {:.3}; of what none passes: mean {:.3}",
        sum / count,
        fluid / count
    );
    println!("{full} of {count} are nine tenths as full");
    assert!(
        full as f64 >= 0.98 * count && least >= 0.8,
        "{full} of {count}, {least:.3}"
    );
    assert!(kept > seeds.len(), "nobody was promised anything");
}

/// A node dies in the middle with all that runs on it, and comes back.
#[test]
fn two_hundred_jobs_end_though_a_node_dies() {
    let mut lost = 0;
    for seed in seeds().into_iter().take(30) {
        let mut course = Course::new(seed, Packing::Leader);
        course.events.push(Reverse((200_000, What::Dies("b"))));
        course.events.push(Reverse((400_000, What::Rises("b"))));
        course.play();
        course.all_are_over();
        lost += course
            .world
            .tables
            .jobs
            .values()
            .filter(|job| job.tries > 1)
            .count();
    }
    assert!(lost > 0, "the node ran nothing when it died");
}
