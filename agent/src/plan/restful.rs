//! The Flux RESTful API as the lead's initial program: the agent itself fetches and starts it, inside the instance.

use flux_shared::agent_spec::{Program, Restful};
use flux_shared::paths::{RESTFUL_DIR, RESTFUL_SECRET_KEY, RESTFUL_TOKEN, RESTFUL_USERNAME, USERS_DIR};
use flux_shared::words::Word;

use super::{Content, Mode, Planned, Scene, Step};

/// What the lead serves; none: something else, or nothing.
pub fn wanted<'a>(scene: &'a Scene) -> Option<&'a Restful> {
    let runner = &scene.spec.runner;
    let is_idle = runner.program == Program::Persistent && !runner.interactive && scene.is_lead();
    runner.restful.as_ref().filter(|_| is_idle)
}

/// What the server needs to know, readable by who runs it: copies of the mounted Secrets.
pub fn files(scene: &Scene) -> Vec<Planned> {
    if wanted(scene).is_none() {
        return Vec::new();
    }
    let owner = scene.identity.owner;
    let folder = scene.paths.restful_dir();
    let mut steps = vec![
        Planned::with(&["uid"], Step::Directory { path: folder.clone(), mode: Mode(0o700), owner }),
        Planned::with(&["uid"], Step::Directory { path: format!("{folder}/users"), mode: Mode(0o700), owner }),
    ];
    let keys = [RESTFUL_SECRET_KEY, RESTFUL_USERNAME, RESTFUL_TOKEN];
    let own = keys.map(|key| (format!("{folder}/{key}"), format!("{RESTFUL_DIR}/{key}")));
    let users = scene.spec.users.iter().map(|name| (format!("{folder}/users/{name}"), format!("{USERS_DIR}/{name}")));
    steps.extend(own.into_iter().chain(users).map(|(path, source)| {
        let content = Content::Secret { source };
        Planned::with(&["uid"], Step::File { path, mode: Mode(0o400), owner, content })
    }));
    steps
}

/// The words of the initial program.
pub fn words(scene: &Scene, restful: &Restful) -> Vec<Word> {
    let size = scene.spec.size;
    let mut words = vec![
        scene.paths.agent(),
        "restful".into(),
        format!("--directory={}", scene.paths.restful_dir()),
        format!("--repository={}", restful.repository),
        format!("--branch={}", restful.branch),
        format!("--port={}", restful.port),
        format!("--nodes={size}"),
    ];
    if !scene.spec.flux.option_flags.is_empty() {
        words.push(format!("--option-flags={}", scene.spec.flux.option_flags.join(" ")));
    }
    words.extend(scene.spec.users.iter().map(|name| format!("--user={name}")));
    words.into_iter().map(Word::Literal).collect()
}
