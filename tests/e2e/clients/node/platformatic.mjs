// @platformatic/kafka as a program for the end-to-end tests: what it does is said by one argument, in JSON
// (tests/e2e/clients/programs.py says which). A member of a group prints "partition offset" of each record, and
// leaves when its standard input ends.

import { readFileSync } from 'node:fs'
import process from 'node:process'

import { Admin, Consumer, Producer } from '@platformatic/kafka'

const wanted = JSON.parse(process.argv[2])
const connection = {
  clientId: wanted.client_id,
  bootstrapBrokers: [wanted.bootstrap],
  ...(wanted.ca && { tls: { ca: [readFileSync(wanted.ca)] } }),
  ...(wanted.mechanism && {
    sasl: { mechanism: wanted.mechanism, username: wanted.user, password: wanted.password }
  })
}

const roles = {
  async create () {
    const admin = new Admin(connection)
    await admin.createTopics({ topics: [wanted.topic], partitions: wanted.partitions, replicas: 1 })
    await admin.close()
  },

  // Sends one record after another, each when the one before it was acknowledged.
  async produce () {
    const producer = new Producer({ ...connection, timeout: 60_000, requestTimeout: 60_000 })
    for (let number = 0; number < wanted.count; number++) {
      const message = { topic: wanted.topic, partition: number % wanted.partitions, value: Buffer.alloc(wanted.size) }
      await producer.send({ messages: [message] })
    }
    await producer.close()
  },

  async consume () {
    const consumer = new Consumer({
      ...connection,
      groupId: wanted.group,
      sessionTimeout: 10_000,
      heartbeatInterval: 500,
      autocommit: true,
      maxBytes: wanted.fetch_bytes,
      maxBytesPerPartition: wanted.fetch_bytes
    })
    const stream = await consumer.consume({ topics: [wanted.topic], mode: 'committed', fallbackMode: 'earliest' })
    stream.on('data', ({ partition, offset }) => { process.stdout.write(`${partition} ${offset}\n`) })
    for await (const _ of process.stdin); // until it ends
    await stream.close()
    await consumer.close(true)
  }
}

await roles[wanted.role]()
