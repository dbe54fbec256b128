//! RocketMQ's Rust client, driven by lines of JSON: see tests/harness/grpc_clients.py.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, BufRead, Write};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

type Answer = Result<Value, String>;
type Ended = Pin<Box<dyn Future<Output = Result<(), ClientError>> + Send>>;
/// Commits a transaction, or rolls it back.
type End = Box<dyn FnOnce(bool) -> Ended + Send>;

/// What the producer of transactions was asked about.
#[derive(Default)]
struct Checked {
    messages: Mutex<Vec<Value>>,
    arrived: Condvar,
}

struct Driver {
    endpoint: String,
    access_key: String,
    producer: Option<Producer>,
    transactor: Option<Producer>,
    checked: Arc<Checked>,
    begun: HashMap<String, End>,
    consumers: HashMap<String, Arc<SimpleConsumer>>,
    views: HashMap<String, (Arc<SimpleConsumer>, MessageView)>,
}

impl Driver {
    fn options(&self) -> ClientOption {
        let mut options = ClientOption::default();
        options.set_access_url(self.endpoint.as_str());
        options.set_enable_tls(false);
        if !self.access_key.is_empty() {
            options.set_access_key(self.access_key.as_str());
            options.set_secret_key("any");
        }
        options
    }

    async fn take(&mut self, command: &Value) -> Answer {
        match command["do"].as_str().unwrap_or("") {
            "send" => self.send(command).await,
            "receive" => self.receive(command).await,
            "ack" => self.ack(command).await,
            "begin" => self.begin(command).await,
            "end" => self.end(command).await,
            "checked" => self.wait_for_checks(command),
            other => Err(format!("this client does not know {other}")),
        }
    }

    async fn send(&mut self, command: &Value) -> Answer {
        if self.producer.is_none() {
            let mut made = Producer::new(ProducerOption::default(), self.options()).map_err(shown)?;
            made.start().await.map_err(shown)?;
            self.producer = Some(made);
        }
        let mut builder = MessageBuilder::builder()
            .set_topic(text(command, "topic"))
            .set_body(text(command, "body").into_bytes());
        if let Some(tag) = command["tag"].as_str() {
            builder = builder.set_tag(tag);
        }
        if let Some(keys) = command["keys"].as_array() {
            builder = builder.set_keys(keys.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        }
        if let Some(group) = command["group"].as_str() {
            builder = builder.set_message_group(group);
        }
        if let Some(delay_ms) = command["delay_ms"].as_u64() {
            builder = builder.set_delivery_timestamp(seconds_after(delay_ms));
        }
        if let Some(given) = command["properties"].as_object() {
            let pairs = given.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or("")));
            builder = builder.set_properties(pairs.collect::<HashMap<_, _>>());
        }
        let message = builder.build().map_err(shown)?;
        let receipt = self.producer.as_ref().unwrap().send(message).await.map_err(shown)?;
        Ok(json!({"id": receipt.message_id(), "handle": null}))
    }

    async fn receive(&mut self, command: &Value) -> Answer {
        let (topic, group) = (text(command, "topic"), text(command, "group"));
        let tags = command["tags"].as_str().unwrap_or("*");
        let wait_ms = command["wait_ms"].as_u64().unwrap_or(5_000);
        let name = format!("{topic} {group} {tags} {wait_ms}");
        if !self.consumers.contains_key(&name) {
            let mut options = self.options();
            options.set_long_polling_timeout(Duration::from_millis(wait_ms));
            let mut reads = SimpleConsumerOption::default();
            reads.set_consumer_group(group.as_str());
            reads.set_topics(vec![topic.as_str()]);
            let mut made = SimpleConsumer::new(reads, options).map_err(shown)?;
            made.start().await.map_err(shown)?;
            self.consumers.insert(name.clone(), Arc::new(made));
        }
        let consumer = self.consumers[&name].clone();
        let filter = FilterExpression::new(FilterType::Tag, tags);
        let invisible = Duration::from_millis(command["invisible_ms"].as_u64().unwrap_or(15_000));
        let count = command["count"].as_i64().unwrap_or(32) as i32;
        let found = consumer.receive_with(&topic, &filter, count, invisible).await.map_err(shown)?;
        let messages: Vec<Value> = found.iter().map(shown_message).collect();
        for view in found {
            self.views.insert(view.message_id().to_string(), (consumer.clone(), view));
        }
        Ok(json!({"messages": messages}))
    }

    async fn ack(&mut self, command: &Value) -> Answer {
        let (consumer, view) = &self.views[&text(command, "message_id")];
        consumer.ack(view).await.map_err(shown)?;
        Ok(json!({}))
    }

    async fn begin(&mut self, command: &Value) -> Answer {
        if self.transactor.is_none() {
            let outcome = command["outcome"].as_str().unwrap_or("UNKNOWN").to_string();
            let checked = self.checked.clone();
            let checker = Box::new(move |_transaction: String, message: MessageView| {
                checked.messages.lock().unwrap().push(shown_message(&message));
                checked.arrived.notify_all();
                match outcome.as_str() {
                    "COMMIT" => TransactionResolution::COMMIT,
                    "ROLLBACK" => TransactionResolution::ROLLBACK,
                    _ => TransactionResolution::UNKNOWN,
                }
            });
            let mut options = ProducerOption::default();
            options.set_topics(vec![text(command, "topic")]);
            let mut made =
                Producer::new_transaction_producer(options, self.options(), checker).map_err(shown)?;
            made.start().await.map_err(shown)?;
            self.transactor = Some(made);
        }
        let body = text(command, "body").into_bytes();
        let builder = MessageBuilder::transaction_message_builder(text(command, "topic"), body);
        let message = builder.build().map_err(shown)?;
        let transactor = self.transactor.as_ref().unwrap();
        let transaction = transactor.send_transaction_message(message).await.map_err(shown)?;
        let answer = json!({"id": transaction.message_id(), "transaction": transaction.transaction_id()});
        self.begun.insert(transaction.message_id().to_string(), end_of(transaction));
        Ok(answer)
    }

    async fn end(&mut self, command: &Value) -> Answer {
        let end = self.begun.remove(&text(command, "message_id"));
        let end = end.ok_or("this client ends a transaction once")?;
        end(text(command, "how") == "COMMIT").await.map_err(shown)?;
        Ok(json!({}))
    }

    fn wait_for_checks(&self, command: &Value) -> Answer {
        let count = command["count"].as_u64().unwrap_or(1) as usize;
        let mut messages = self.checked.messages.lock().unwrap();
        while messages.len() < count {
            messages = self.checked.arrived.wait(messages).unwrap();
        }
        Ok(json!({"messages": *messages}))
    }
}

fn end_of<T: Transaction + Send + 'static>(transaction: T) -> End {
    Box::new(move |commits| {
        Box::pin(async move {
            if commits {
                transaction.commit().await
            } else {
                transaction.rollback().await
            }
        })
    })
}

fn text(command: &Value, name: &str) -> String {
    command[name].as_str().unwrap_or("").to_string()
}

fn shown(error: ClientError) -> String {
    error.to_string()
}

/// This client sends whole seconds.
fn seconds_after(delay_ms: u64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    (now + delay_ms).div_ceil(1_000) as i64
}

fn shown_message(message: &MessageView) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    json!({
        "id": message.message_id(),
        "body": String::from_utf8_lossy(message.body()),
        "tag": message.tag(),
        "keys": keys,
        "group": message.message_group(),
        "attempt": message.delivery_attempt(),
        "properties": message.properties(),
        "corrupted": false,
    })
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let mut driver = Driver {
        endpoint: given[1].clone(),
        access_key: given[2].clone(),
        producer: None,
        transactor: None,
        checked: Arc::default(),
        begun: HashMap::new(),
        consumers: HashMap::new(),
        views: HashMap::new(),
    };
    for line in io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = driver.take(&command).await;
        let answer = answer.unwrap_or_else(|detail| json!({"error": 0, "detail": detail}));
        let mut out = io::stdout().lock();
        writeln!(out, "@{answer}").unwrap();
        out.flush().unwrap();
    }
}
