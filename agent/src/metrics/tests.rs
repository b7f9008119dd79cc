use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::*;
use crate::flux_rpc::connection::peer::{answer_of, answer_with, questions_asked_by};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

/// Runs `work` while a metrics server runs, whose broker answers each request with `answer_to`. Returns the result
/// of `work`, and the number of requests to the broker.
fn with_server<T: Send + 'static>(
    answer_to: impl Fn(&str) -> Vec<u8> + Send + 'static,
    work: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> (T, usize) {
    let mut found = None;
    let serve_and_work = async |broker| {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let metrics = InstanceMetrics::new("mc", broker);
        let server = MetricsServer(tokio::spawn(serve(listener, Arc::new(metrics))));
        let work = move || work(([127, 0, 0, 1], port).into());
        found = Some(tokio::task::spawn_blocking(work).await.unwrap());
        drop(server);
    };
    let questions = questions_asked_by(serve_and_work, move |question| Some(answer_to(question)));
    (found.unwrap(), questions.len())
}

fn read_answer(mut stream: &TcpStream) -> String {
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    read_answer(&stream)
}

fn jobs(question: &str) -> Vec<u8> {
    if question.contains("job-list.job-stats") {
        answer_of(r#"{"job_states":{"depend":0,"priority":0,"sched":20,"run":1,"cleanup":0,"inactive":2}}"#)
    } else {
        answer_with(38, "no such service")
    }
}

#[test]
fn concurrent_metrics_requests_share_one_broker_query() {
    let (answers, questions) = with_server(jobs, |address| {
        let asking: Vec<_> = (0..10)
            .map(|_| std::thread::spawn(move || ask(address, REQUEST)))
            .collect();
        asking
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    for answer in &answers {
        assert!(
            answer.contains("job_queue_state_sched_count{minicluster=\"mc\"} 20\n"),
            "{answer}"
        );
        assert!(!answer.contains("node_up_count"), "{answer}");
    }
    // Two requests for the nodes, since the first failed, and one for the jobs.
    assert_eq!(questions, 3);
}

#[test]
fn dropped_metrics_clients_do_not_repeat_the_broker_query() {
    // A busy broker: the server closes the oldest connections before the broker answers.
    let slow = |question: &str| {
        std::thread::sleep(Duration::from_millis(500));
        jobs(question)
    };
    let (answer, questions) = with_server(slow, |address| {
        let clients: Vec<TcpStream> = (0..5 * MAX_CONNECTIONS)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(REQUEST).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                stream
            })
            .collect();
        assert_eq!(
            read_answer(&clients[0]),
            "",
            "the server has closed the oldest connection"
        );
        ask(address, REQUEST)
    });
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(questions, 3);
}

#[test]
fn metrics_reuse_broker_answer_for_a_second() {
    let (_, questions) = with_server(jobs, |address| {
        ask(address, REQUEST);
        ask(address, REQUEST);
        std::thread::sleep(FRESH);
        ask(address, REQUEST);
    });
    assert_eq!(questions, 2 * 3);
}

#[test]
fn metrics_answer_503_when_broker_gives_no_usable_answer() {
    let (answer, _) = with_server(|_| answer_of("[]"), |address| ask(address, REQUEST));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[test]
fn idle_metrics_connections_do_not_block_other_clients() {
    let (answer, _) = with_server(jobs, |address| {
        let held: Vec<TcpStream> = (0..3 * MAX_CONNECTIONS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        held.iter()
            .for_each(|mut stream| drop(stream.write_all(b"GET /met")));
        let answer = ask(address, REQUEST);
        // The server has closed the oldest connections. It does not wait for idle clients.
        assert_eq!(read_answer(&held[0]), "");
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn metrics_requests_that_are_malformed_are_rejected_or_dropped() {
    let (answers, _) = with_server(jobs, |address| {
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &[b'a'; 2 * MAX_HEAD]].concat();
        let half = TcpStream::connect(address).unwrap();
        (&half).write_all(b"GET").unwrap();
        half.shutdown(Shutdown::Write).unwrap();
        [
            ask(address, &[0xff, 0x00, b'\n', b'\n']),
            read_answer(&half),
            ask(address, &long),
            ask(address, REQUEST),
        ]
    });
    assert!(
        answers[0].starts_with("HTTP/1.1 400 ") && answers[1].is_empty(),
        "{answers:?}"
    );
    // The unread rest of the request may reset the connection, and the answer is lost.
    assert!(
        answers[2].is_empty() || answers[2].starts_with("HTTP/1.1 431 "),
        "{answers:?}"
    );
    assert!(answers[3].starts_with("HTTP/1.1 200 "), "{answers:?}");
}
