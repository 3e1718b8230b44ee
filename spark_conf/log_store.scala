package kafka_ds

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{FileAlreadyExistsException, Files, Paths}
import java.nio.file.StandardOpenOption.{CREATE_NEW, READ, WRITE}
import java.util.{Arrays, Iterator => Lines}

import io.delta.storage.{HDFSLogStore, S3SingleDriverLogStore}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

/** Delta's own stores, except that of several writers of a commit file, on any machine, exactly one wins. */
object Commit {
  def bytes(actions: Lines[String]): Array[Byte] = {
    val text = new StringBuilder
    while (actions.hasNext) text.append(actions.next()).append('\n')
    text.toString.getBytes(UTF_8)
  }
}

/** On S3 by a conditional PUT. */
class S3LogStore(settings: Configuration) extends S3SingleDriverLogStore(settings) {
  override def write(path: Path, actions: Lines[String], overwrite: java.lang.Boolean, conf: Configuration): Unit =
    if (overwrite) super.write(path, actions, overwrite, conf)
    else {
      val data = Commit.bytes(actions)
      try {
        // Refused where Hadoop's file system cannot do it.
        val file = path.getFileSystem(conf).createFile(path).must("fs.option.create.conditional.overwrite", true).build()
        try file.write(data)
        catch {
          // To close it would make a commit of what was written so far.
          case problem: Throwable => file.abort(); throw problem
        }
        file.close()
      } catch {
        // A PUT whose answer was lost is repeated, and refused by what it made itself.
        case problem: IOException => if (!isOurs(path, data, conf, problem)) throw new FileAlreadyExistsException(path.toString)
      }
    }

  private def isOurs(path: Path, data: Array[Byte], conf: Configuration, problem: IOException): Boolean = {
    val system = path.getFileSystem(conf)
    if (!system.exists(path)) throw problem
    val file = system.open(path)
    try Arrays.equals(file.readNBytes(data.length + 1), data)
    finally file.close()
  }
}

/** In a folder by link(2), and durable: the file, then its name. */
class FolderLogStore(settings: Configuration) extends HDFSLogStore(settings) {
  override def write(path: Path, actions: Lines[String], overwrite: java.lang.Boolean, conf: Configuration): Unit =
    if (overwrite) super.write(path, actions, overwrite, conf)
    else {
      val target = Paths.get(path.toUri.getPath)
      val temporary = Paths.get(createTempPath(path).toUri.getPath)
      try {
        val file = FileChannel.open(temporary, CREATE_NEW, WRITE)
        try {
          val data = ByteBuffer.wrap(Commit.bytes(actions))
          while (data.hasRemaining) file.write(data)
          file.force(true)
        } finally file.close()
        Files.createLink(target, temporary)
      } finally deleteIfPossible(temporary)
      val folder = FileChannel.open(target.getParent, READ)
      try folder.force(true)
      catch {
        // Not to be tried again by who would append the same rows.
        case problem: IOException =>
          throw new IOException(s"$target was committed, but may be gone after a power loss", problem)
      } finally folder.close()
    }

  /** It is nobody's: what is left of it is no commit. */
  private def deleteIfPossible(temporary: java.nio.file.Path): Unit =
    try Files.deleteIfExists(temporary)
    catch { case _: IOException => () }
}
