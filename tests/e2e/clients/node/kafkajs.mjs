// kafkajs as a program for the end-to-end tests: what it does is said by one argument, in JSON
// (tests/e2e/clients/programs.py says which). A member of a group prints "partition offset" of each record, and
// leaves when its standard input ends.

import { readFileSync } from 'node:fs'
import process from 'node:process'

import { Kafka, logLevel } from 'kafkajs'

const wanted = JSON.parse(process.argv[2])
const kafka = new Kafka({
  clientId: wanted.client_id,
  brokers: [wanted.bootstrap],
  logLevel: logLevel.ERROR,
  ...(wanted.ca && { ssl: { ca: [readFileSync(wanted.ca)] } }),
  ...(wanted.mechanism && {
    sasl: { mechanism: wanted.mechanism.toLowerCase(), username: wanted.user, password: wanted.password }
  })
})

const roles = {
  async create () {
    const admin = kafka.admin()
    await admin.connect()
    await admin.createTopics({ topics: [{ topic: wanted.topic, numPartitions: wanted.partitions }] })
    await admin.disconnect()
  },

  // Sends one record after another, each when the one before it was acknowledged.
  async produce () {
    const producer = kafka.producer()
    await producer.connect()
    for (let number = 0; number < wanted.count; number++) {
      const message = { partition: number % wanted.partitions, value: Buffer.alloc(wanted.size) }
      await producer.send({ topic: wanted.topic, messages: [message] })
    }
    await producer.disconnect()
  },

  async consume () {
    const consumer = kafka.consumer({
      groupId: wanted.group,
      sessionTimeout: 10_000,
      heartbeatInterval: 500,
      maxWaitTimeInMs: 500, // between its fetches it notices a rebalance
      maxBytesPerPartition: wanted.fetch_bytes,
      maxBytes: wanted.fetch_bytes
    })
    await consumer.connect()
    await consumer.subscribe({ topics: [wanted.topic], fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ partition, message }) => { process.stdout.write(`${partition} ${message.offset}\n`) }
    })
    for await (const _ of process.stdin); // until it ends
    await consumer.disconnect()
  }
}

await roles[wanted.role]()
