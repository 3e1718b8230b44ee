package org.apache.spark.sql.kafka010

import java.nio.file.Files
import java.util.{Collections, Properties, UUID}
import java.util.concurrent.{ExecutionException, TimeUnit}

import scala.jdk.CollectionConverters._

import kafka_ds.Brokers
import org.apache.kafka.clients.admin._
import org.apache.kafka.clients.producer._
import org.apache.kafka.clients.producer.internals.DefaultPartitioner
import org.apache.kafka.common.TopicPartition
import org.apache.kafka.common.errors.{TopicExistsException, UnknownTopicOrPartitionException}
import org.apache.kafka.common.serialization.StringSerializer

/**
 * The broker of a suite of Spark's, which is a process outside of Spark's.
 *
 * Spark's tests have a class of this name, with ZooKeeper and a broker of Apache Kafka 3 in the tests' own process; of two
 * classes with one name the one that comes first on the class path is taken. This one has what the tests call, but for
 * Kerberos.
 */
class KafkaTestUtils(withBrokerProps: Map[String, Object] = Map.empty, secure: Boolean = false) {
  require(!secure, "this broker has no Kerberos")

  private var broker: Brokers = _
  private var admin: Admin = _

  /** A suite may add to these. */
  protected def brokerConfiguration: Properties = {
    val settings = new Properties()
    settings.put("group.initial.rebalance.delay.ms", "10")
    settings.put("offsets.topic.num.partitions", "1")
    settings.put("transaction.state.log.num.partitions", "1")
    settings.putAll(withBrokerProps.asJava)
    settings
  }

  /**
   * Kafka 4 has no segments of some bytes. To be deleted as soon, they are rolled with each millisecond here.
   * Kafka ignores delete.retention.ms, which is no setting of brokers; kafka-ds would refuse it.
   */
  private def settings: Map[String, String] = {
    val wanted = brokerConfiguration.asInstanceOf[java.util.Map[String, Object]].asScala.view.mapValues(_.toString).toMap - "delete.retention.ms"
    if (wanted.get("log.segment.bytes").exists(_.toInt < 1048576)) {
      wanted - "log.segment.bytes" + ("log.roll.ms" -> "1")
    } else {
      wanted
    }
  }

  def setup(): Unit = {
    broker = Brokers.start(Files.createTempDirectory("spark-kafka-"), 1, settings.asJava)
    admin = Admin.create(clientConfiguration)
  }

  def teardown(): Unit = {
    if (admin != null) admin.close()
    admin = null
    if (broker != null) broker.close()
    broker = null
  }

  def brokerAddress: String = broker.bootstrap

  private def clientConfiguration: Properties = {
    val settings = new Properties()
    settings.put("bootstrap.servers", brokerAddress)
    settings
  }

  def createTopic(topic: String): Unit = createTopic(topic, 1)

  def createTopic(topic: String, partitions: Int, overwrite: Boolean = false): Unit = {
    val wanted = Collections.singleton(new NewTopic(topic, partitions, 1.toShort))
    try {
      admin.createTopics(wanted).all().get()
    } catch {
      case error: ExecutionException if error.getCause.isInstanceOf[TopicExistsException] =>
        if (overwrite) {
          deleteTopic(topic)
          admin.createTopics(wanted).all().get()
        }
    }
    awaitPartitions(topic, partitions)
  }

  def deleteTopic(topic: String): Unit = {
    admin.deleteTopics(Collections.singleton(topic)).all().get()
    Brokers.await(s"deletion of $topic", () => partitionsOf(topic).isEmpty)
  }

  def addPartitions(topic: String, partitions: Int): Unit = {
    admin.createPartitions(Map(topic -> NewPartitions.increaseTo(partitions)).asJava).all().get()
    awaitPartitions(topic, partitions)
  }

  private def awaitPartitions(topic: String, partitions: Int): Unit =
    Brokers.await(s"leaders of $topic", () => {
      val found = partitionsOf(topic)
      found.size >= partitions && found.forall(each => each.leader() != null && !each.leader().isEmpty)
    })

  private def partitionsOf(topic: String) =
    try {
      admin.describeTopics(Collections.singleton(topic)).allTopicNames().get().get(topic).partitions().asScala.toSeq
    } catch {
      case error: ExecutionException if error.getCause.isInstanceOf[UnknownTopicOrPartitionException] => Seq.empty
    }

  def getAllTopicsAndPartitionSize(): Seq[(String, Int)] =
    admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().asScala.toSeq
      .map(topic => topic -> partitionsOf(topic).size)

  def sendMessages(topic: String, values: Array[String]): Seq[(String, RecordMetadata)] =
    sendMessages(topic, values, None)

  def sendMessages(topic: String, values: Array[String], partition: Option[Int]): Seq[(String, RecordMetadata)] = {
    val number = partition.map(Int.box).orNull
    sendMessages(values.toSeq.map(value => new ProducerRecord[String, String](topic, number, null, value)))
  }

  def sendMessage(record: ProducerRecord[String, String]): Seq[(String, RecordMetadata)] = sendMessages(Seq(record))

  def sendMessages(records: Array[ProducerRecord[String, String]]): Seq[(String, RecordMetadata)] =
    sendMessages(records.toSeq)

  def sendMessages(records: Seq[ProducerRecord[String, String]]): Seq[(String, RecordMetadata)] = {
    val producer = new KafkaProducer[String, String](producerConfiguration)
    try {
      records.map(record => record.value() -> producer.send(record).get(60, TimeUnit.SECONDS))
    } finally {
      producer.close()
    }
  }

  private def producerConfiguration: Properties = {
    val settings = clientConfiguration
    settings.put("key.serializer", classOf[StringSerializer].getName)
    settings.put("value.serializer", classOf[StringSerializer].getName)
    // Spark's class does not leave the choice of partitions to Kafka's new default.
    settings.put("partitioner.class", classOf[DefaultPartitioner].getName)
    settings
  }

  def withTransactionalProducer(use: KafkaProducer[String, String] => Unit): Unit = {
    val settings = producerConfiguration
    settings.put("transactional.id", UUID.randomUUID().toString)
    val producer = new KafkaProducer[String, String](settings)
    try {
      producer.initTransactions()
      use(producer)
    } finally {
      producer.close()
    }
  }

  /** Deletes what retention would: all, since the one test that calls this retains records for a millisecond. */
  def cleanupLogs(): Unit = {
    val ends = getLatestOffsets(admin.listTopics().names().get().asScala.toSet)
    admin.deleteRecords(ends.view.mapValues(RecordsToDelete.beforeOffset).toMap.asJava).all().get()
  }

  private def offsets(topics: Set[String], wanted: OffsetSpec): Map[TopicPartition, Long] = {
    val asked = for (topic <- topics; each <- partitionsOf(topic)) yield new TopicPartition(topic, each.partition())
    admin.listOffsets(asked.map(_ -> wanted).toMap.asJava).all().get().asScala.view.mapValues(_.offset()).toMap
  }

  def getEarliestOffsets(topics: Set[String]): Map[TopicPartition, Long] = offsets(topics, OffsetSpec.earliest())

  def getLatestOffsets(topics: Set[String]): Map[TopicPartition, Long] = offsets(topics, OffsetSpec.latest())

  def listConsumerGroups(): ListConsumerGroupsResult = admin.listConsumerGroups()

  def waitUntilOffsetAppears(partition: TopicPartition, offset: Long): Unit =
    Brokers.await(s"offset $offset of $partition", () => getLatestOffsets(Set(partition.topic()))(partition) >= offset)
}
